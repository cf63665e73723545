//! Checks, value by value, that the service let through as much as the limit says, no more and no
//! less.

/// What each value was granted.
pub struct LimitCheck {
    limit: u64,
    hits: u64,
    values: Vec<Granted>,
}

/// What `--check-limit` found.
pub struct Verdict {
    pub values_asked: u64,
    /// Values let through for more hits than the limit.
    pub over_granted: u64,
    /// Values refused although one more request would have fitted.
    pub under_granted: u64,
}

/// How the requests for one value were answered.
#[derive(Clone, Default)]
struct Granted {
    ok: u64,
    refused: u64,
    /// Errors and lost answers: the service may have counted them.
    unknown: u64,
}

/// What one request was told, as far as this check cares.
pub enum Told {
    Ok,
    Refused,
    Unknown,
}

impl LimitCheck {
    pub fn new(limit: u64, hits: u64, values: u32) -> Self {
        Self {
            limit,
            hits,
            values: vec![Granted::default(); values as usize],
        }
    }

    pub fn record(&mut self, value: u32, told: &Told) {
        let granted = &mut self.values[value as usize];
        match told {
            Told::Ok => granted.ok += 1,
            Told::Refused => granted.refused += 1,
            Told::Unknown => granted.unknown += 1,
        }
    }

    pub fn verdict(&self) -> Verdict {
        let count = |is: &dyn Fn(&Granted) -> bool| {
            self.values.iter().filter(|granted| is(granted)).count() as u64
        };
        Verdict {
            values_asked: count(&|granted| granted.ok + granted.refused + granted.unknown > 0),
            over_granted: count(&|granted| granted.ok * self.hits > self.limit),
            under_granted: count(&|granted| {
                granted.refused > 0 && (granted.ok + granted.unknown + 1) * self.hits <= self.limit
            }),
        }
    }
}
