//! One replica of the simulation: the real state machines, as `store/redis/leases.rs` keeps them.

use tollgate::base::time::Time;
use tollgate::limits::algorithm::lease::{Demand, Events, LeasedCounter};
use tollgate::limits::{LeaseTerms, Limit};

use super::laws::{Broken, Kept, Ledger, Peak, check_identity};

#[derive(Debug, Default)]
pub(super) struct Replica {
    /// The index of the limit in force.
    pub(super) limit: usize,
    /// See [`super::history::Act::Clock`].
    pub(super) clock_error: i64,
    /// Its clock was wrong once: hits whose window was not over may be stranded.
    was_wrong: bool,
    /// How often it was killed: replies to requests from before are not for it.
    pub(super) generation: u32,
    pub(super) is_sweeping: bool,
    /// The demand of the counter without leases, by limit.
    cold: [Demand; 2],
    entries: [Option<Entry>; 2],
    /// By limit and window.
    ledgers: Vec<((usize, Time), Ledger)>,
    pub(super) demand: Peak,
    pub(super) connections: [Connection; 2],
    pub(super) offered: u64,
    pub(super) admitted: u64,
}

/// Messages on one connection arrive in order.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Connection {
    pub(super) to_store: Time,
    pub(super) from_store: Time,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) counter: LeasedCounter,
    totals: Events,
}

impl Replica {
    pub(super) fn entry(&mut self, limit: usize) -> Option<&mut Entry> {
        self.entries[limit].as_mut()
    }

    pub(super) fn entries(&mut self) -> impl Iterator<Item = (usize, &mut Entry)> {
        let entries = self.entries.iter_mut().enumerate();
        entries.filter_map(|(limit, entry)| entry.as_mut().map(|entry| (limit, entry)))
    }

    /// Everything in memory is lost.
    pub(super) fn crash(&mut self) {
        self.generation += 1;
        (self.is_sweeping, self.was_wrong) = (false, self.clock_error != 0);
        self.cold = Default::default();
        self.entries = Default::default();
        self.ledgers.clear();
        self.demand = Peak::default();
    }

    pub(super) fn set_clock(&mut self, error: i64) {
        self.clock_error = error;
        self.was_wrong |= error != 0;
    }

    /// The ledger of a limit and the window that begins then.
    pub(super) fn ledger(&mut self, limit: usize, window: Time) -> &mut Ledger {
        let key = (limit, window);
        let known = self.ledgers.iter().rposition(|(known, _)| *known == key);
        let index = known.unwrap_or_else(|| {
            self.ledgers.push((key, Ledger::default()));
            self.ledgers.len() - 1
        });
        &mut self.ledgers[index].1
    }

    /// After a take.
    pub(super) fn check_bound(
        &mut self,
        index: usize,
        window: Time,
        limit: &Limit,
        replicas: usize,
    ) -> Kept {
        if self.was_wrong {
            return Ok(());
        }
        let most = self.demand.most;
        self.ledger(index, window).check_bound(limit, replicas, most)
    }

    /// Counts the demand of a counter without leases. Once it is hot it may have some.
    pub(super) fn warm_up(&mut self, index: usize, limit: &Limit, hits: u64, now: Time) {
        let terms = LeaseTerms::new(limit, None).expect("it can have leases");
        let demand = &mut self.cold[index];
        demand.add(hits, now, terms.span());
        if demand.is_hot(now, terms.span()) {
            self.entries[index] = Some(Entry {
                counter: LeasedCounter::new(*limit, terms, *demand),
                totals: Events::default(),
            });
            *demand = Demand::default();
        }
    }

    pub(super) fn remove_idle(&mut self, now: Time) {
        for entry in &mut self.entries {
            entry.take_if(|entry| entry.counter.is_idle(now));
        }
    }
}

impl Entry {
    /// Runs something on the counter, and checks what it has counted.
    pub(super) fn with<T>(
        &mut self,
        run: impl FnOnce(&mut LeasedCounter) -> T,
    ) -> Result<T, Broken> {
        let result = run(&mut self.counter);
        let Events { taken, used, given_back, window, unknown, dropped } =
            self.counter.take_events();
        self.totals.taken += taken;
        self.totals.used += used;
        self.totals.given_back += given_back;
        self.totals.window += window;
        self.totals.unknown += unknown;
        self.totals.dropped += dropped;
        check_identity(&self.totals, self.counter.held())?;
        Ok(result)
    }

    /// The counter was deleted. Returns the hits that were dropped.
    pub(super) fn drop_taken_before(&mut self, at: Time) -> Result<u64, Broken> {
        let before = self.totals.dropped;
        self.with(|counter| counter.drop_taken_before(at))?;
        Ok(self.totals.dropped - before)
    }
}
