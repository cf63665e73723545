//! Requests over time, in a bounded number of columns whose width grows with the log.

use crate::time::{Span, Time};

/// Columns of a picture. Of a long log at least half of them are used.
pub(super) const COLUMNS: usize = 132;
/// The width of a column at first.
const WIDTH_MIN: Span = Span::from_micros(1_000);

/// Requests and over-limit requests by time.
#[derive(Debug, Clone)]
pub(super) struct Timeline {
    start: Time,
    width: Span,
    columns: [Column; COLUMNS],
}

/// The requests of a part of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Column {
    pub(super) requests: u64,
    pub(super) over_limit: u64,
}

impl Timeline {
    pub(super) const fn new(start: Time) -> Self {
        Self {
            start,
            width: WIDTH_MIN,
            columns: [Column {
                requests: 0,
                over_limit: 0,
            }; COLUMNS],
        }
    }

    /// Counts one request, which is not before the start.
    pub(super) fn add(&mut self, at: Time, is_over: bool) {
        let index = self.index(at);
        let column = &mut self.columns[index];
        column.requests += 1;
        column.over_limit += u64::from(is_over);
    }

    /// The columns up to `end`, and the width of each.
    pub(super) fn columns(&self, end: Time) -> (Vec<Column>, Span) {
        let mut fitted = self.clone();
        let last = fitted.index(end);
        (fitted.columns[..=last].to_vec(), fitted.width)
    }

    /// The column of a time; makes columns wider until there is one.
    fn index(&mut self, at: Time) -> usize {
        loop {
            let index = at.since(self.start).as_micros() / self.width.as_micros();
            if index < COLUMNS as u64 {
                return usize::try_from(index).unwrap_or(0);
            }
            for index in 0..COLUMNS {
                let pair = self.columns.get(2 * index..2 * index + 2).unwrap_or(&[]);
                self.columns[index] = Column {
                    requests: pair.iter().map(|column| column.requests).sum(),
                    over_limit: pair.iter().map(|column| column.over_limit).sum(),
                };
            }
            self.width = Span::from_micros(2 * self.width.as_micros());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_grow_with_the_log_and_keep_every_request() {
        let start = Time::from_micros(1_000_000_000);
        let mut timeline = Timeline::new(start);
        for second in 0..1_000 {
            timeline.add(start.plus(Span::from_secs(second)), second >= 500);
        }
        let (columns, width) = timeline.columns(start.plus(Span::from_secs(999)));
        assert!(columns.len() >= COLUMNS / 2 - 1, "{}", columns.len());
        assert_eq!(width, Span::from_micros(8_192_000));
        let requests: u64 = columns.iter().map(|column| column.requests).sum();
        let over: u64 = columns.iter().map(|column| column.over_limit).sum();
        assert_eq!((requests, over), (1_000, 500));
        assert_eq!(columns[0].over_limit, 0);
    }
}
