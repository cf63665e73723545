//! Leases beside `exact`, which decides the same calls at once: all of the limit is admitted, none is
//! over limit below it, and each replica has its part.

#![expect(clippy::cast_precision_loss, reason = "numbers of calls are small")]

use fastrand::Rng;
use tollgate::base::time::{Span, Time};
use tollgate::limits::algorithm::Counter;
use tollgate::limits::check::Hits;
use tollgate::limits::{Algorithm, Limit, OverLimitHits, Terms, Unit};

use super::history::{Act, Caller, DAY, History, Network, Step, limit_of};
use super::laws::{Broken, Kept};
use super::store::decide;
use super::world::World;

/// Whole windows of a history.
const WINDOWS: u64 = 2;
/// Calls of one window, in hundredths of the limit.
const LOADS: [u64; 5] = [90, 130, 200, 500, 2_000];

/// How demand is spread over time and replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Steady,
    /// Five times as much in a fifth of the time.
    Bursty,
    /// Four of five calls go to one replica.
    Skewed,
    /// All calls go to one replica, and from the middle of a window on to another.
    Moving,
}

/// A history without faults.
#[derive(Debug)]
pub(super) struct Calm {
    history: History,
    load: u64,
    shape: Shape,
}

/// Limits that promise the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    FixedWindow,
    SubWindows,
    /// Two counters, of which the older fades: hits return all the time, as those of a bucket.
    SlidingWindow,
    TokenBucket,
}

/// What leases admit of what `exact` admits, and how much less evenly.
#[derive(Debug, Clone, Copy)]
pub(super) struct Figures {
    class: Class,
    admitted: f64,
    /// The difference of Jain's indices.
    less_fair: f64,
}

impl Calm {
    pub(super) fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let rng = &mut rng;
        let load = rng.choice(LOADS).unwrap_or(90);
        let replicas = rng.u32(1..=if load > 200 { 4 } else { 16 });
        let requests = 300 + 30 * replicas + rng.u32(0..300);
        let (seconds, buckets) = rng.choice([(1, 1), (5, 5), (10, 4), (60, 6)]).unwrap_or((1, 1));
        let which = rng.u8(0..4);
        let algorithm = match which {
            0 => Algorithm::FixedWindow,
            1 | 2 => Algorithm::SlidingWindow,
            _ => Algorithm::TokenBucket,
        };
        let limit = limit_of(&Terms {
            unit_multiplier: seconds,
            buckets: (which == 2).then_some(buckets),
            over_limit_hits: Some(OverLimitHits::Drop),
            ..Terms::new(requests.into(), Unit::Second, algorithm)
        });
        let shape = rng
            .choice([Shape::Steady, Shape::Bursty, Shape::Skewed, Shape::Moving])
            .unwrap_or(Shape::Steady);
        let calls = u64::from(requests) * load / 100 * WINDOWS;
        let steps = (0..calls).map(|call| shape.step(rng, &limit, replicas as usize, call, calls));
        let steps = steps.collect();
        let delay = rng.choice([200, 2_000]).unwrap_or(200);
        Self {
            history: History {
                seed,
                limits: vec![limit],
                replicas: replicas as usize,
                network: Network {
                    delay,
                    timeout: Span::from_secs(1),
                    lost: 0,
                    unanswered: 0,
                    unsent: 0,
                    outage: None,
                },
                steps,
            },
            load,
            shape,
        }
    }

    /// Plays it, and compares. No figures if less than the limit is offered, or nothing was leased.
    pub(super) fn compare(&self) -> Result<Option<Figures>, Broken> {
        let mut world = World::new(&self.history, None);
        world.play()?;
        let exact = Exact::play(&self.history);
        let limit = self.history.limits[0];
        let replicas = world.replicas.iter();
        let (offered, admitted): (Vec<u64>, Vec<u64>) =
            replicas.map(|replica| (replica.offered, replica.admitted)).unzip();
        let all: u64 = admitted.iter().sum();
        let exactly: u64 = exact.admitted.iter().sum();
        if self.load < 100 {
            let is_over = all < exactly && self.shape == Shape::Steady;
            if is_over && exactly == offered.iter().sum::<u64>() {
                let what = format!("{all} of {exactly} admitted below the limit");
                return Err(self.broken(&what));
            }
            return Ok(None);
        }
        let class = Class::of(&limit);
        if class == Class::FixedWindow {
            self.check_windows(&world, &limit)?;
        }
        let figures = Figures {
            class,
            admitted: ratio(all, exactly),
            less_fair: jain(&exact.admitted, &offered) - jain(&admitted, &offered),
        };
        if figures.admitted < class.admitted_min() {
            return Err(self.broken(&format!("{figures:?}")));
        }
        // With many replicas it may never be hot.
        Ok((world.taken > 0).then_some(figures))
    }

    /// Law U: all of each window is admitted, but for hits that return in its last moments.
    fn check_windows(&self, world: &World<'_>, limit: &Limit) -> Kept {
        let windows = world.admitted.windows.values();
        for (_, window) in (0..WINDOWS).zip(windows) {
            if window.admitted * 100 < limit.requests * 99 {
                return Err(self.broken(&format!("U: a window admits {}", window.admitted)));
            }
        }
        Ok(())
    }

    fn broken(&self, what: &str) -> Broken {
        let Self { history, load, shape } = self;
        Broken(format!(
            "{what}: seed {}, {shape:?}, load {load} %, {} replicas, {:?}",
            history.seed, history.replicas, history.limits[0]
        ))
    }
}

impl Class {
    pub(super) const ALL: [Self; 4] =
        [Self::FixedWindow, Self::SubWindows, Self::SlidingWindow, Self::TokenBucket];

    fn of(limit: &Limit) -> Self {
        match limit.algorithm {
            Algorithm::FixedWindow => Self::FixedWindow,
            Algorithm::SlidingWindow if limit.buckets > 0 => Self::SubWindows,
            Algorithm::SlidingWindow => Self::SlidingWindow,
            _ => Self::TokenBucket,
        }
    }

    /// The least that one history admits of what `exact` admits.
    fn admitted_min(self) -> f64 {
        match self {
            Self::FixedWindow => 0.99,
            Self::SubWindows | Self::TokenBucket => 0.98,
            Self::SlidingWindow => 0.97,
        }
    }

    /// By how much a history is less fair. With few calls that also depends on chance: one in fifty
    /// may be less fair.
    fn less_fair_max(self) -> f64 {
        match self {
            Self::FixedWindow | Self::SubWindows => 0.02,
            Self::SlidingWindow | Self::TokenBucket => 0.1,
        }
    }

    /// Checks all histories of the class. Returns a line of figures.
    pub(super) fn check(self, all: &[Figures]) -> String {
        let of_class = all.iter().filter(|figures| figures.class == self);
        let (admitted, less_fair): (Vec<f64>, Vec<f64>) =
            of_class.map(|figures| (figures.admitted, figures.less_fair)).unzip();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let less_fair_max = self.less_fair_max();
        let unfair = less_fair.iter().filter(|less| **less > less_fair_max).count();
        let text = format!(
            "{self:?}: {} histories, {:.4} of exact (at least {:.4}), less fair by {:.4} (at most {:.4}; {unfair} by more than {less_fair_max})",
            admitted.len(),
            mean(&admitted),
            admitted.iter().copied().fold(f64::INFINITY, f64::min),
            mean(&less_fair),
            less_fair.iter().copied().fold(0.0, f64::max),
        );
        let mean_min = if self == Self::FixedWindow { 0.9999 } else { 0.99 };
        let is_kept = mean(&admitted) >= mean_min && unfair * 50 <= less_fair.len();
        assert!(is_kept, "{text}");
        text
    }
}

impl Shape {
    fn step(self, rng: &mut Rng, limit: &Limit, replicas: usize, call: u64, calls: u64) -> Step {
        let lasts = limit.period.as_micros() * WINDOWS;
        // Not in step with anything.
        let mut after = lasts * call / calls + rng.u64(0..lasts / calls / 4);
        if self == Shape::Bursty {
            // As if a half second had only its first fifth, five times as dense.
            let cycle = limit.period.as_micros() / 2;
            let within = after % cycle;
            after = after - within + within / 5;
        }
        let random = rng.usize(0..replicas);
        let replica = match self {
            Shape::Steady => usize::try_from(call).unwrap_or(0) % replicas,
            Shape::Bursty => random,
            Shape::Skewed if rng.u8(0..5) > 0 || replicas == 1 => 0,
            Shape::Skewed => rng.usize(1..replicas),
            Shape::Moving => {
                let is_later = after % limit.period.as_micros() * 2 > limit.period.as_micros();
                usize::from(is_later).min(replicas - 1)
            }
        };
        Step { at: Time::from_micros(DAY + after), replica, act: Act::Call(1, Caller::Waits) }
    }
}

/// Each call decided at once.
struct Exact {
    /// By replica.
    admitted: Vec<u64>,
}

impl Exact {
    fn play(history: &History) -> Self {
        let limit = history.limits[0];
        let mut counter = Counter::new(&limit);
        let mut admitted = vec![0; history.replicas];
        for step in &history.steps {
            if let Act::Call(hits, _) = step.act
                && !decide(&mut counter, &limit, step.at, Hits::Add(hits))
            {
                admitted[step.replica] += hits;
            }
        }
        Self { admitted }
    }
}

fn ratio(part: u64, all: u64) -> f64 {
    part as f64 / all as f64
}

/// Jain's index of fairness: 1 if each replica has the same part of what it was offered.
fn jain(admitted: &[u64], offered: &[u64]) -> f64 {
    let parts = admitted.iter().zip(offered).filter(|(_, offered)| **offered > 0);
    let parts: Vec<f64> = parts.map(|(admitted, offered)| ratio(*admitted, *offered)).collect();
    let sum: f64 = parts.iter().sum();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    sum * sum / (parts.len() as f64 * squares)
}
