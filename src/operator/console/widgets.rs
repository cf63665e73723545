//! Parts of views: charts, bars and figures. Counts are whole numbers, as on /metrics.

use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::base::time::{Span, Time};
use crate::rules::stats::counts::HitCounts;

/// Units of a chart.
const BAR_WIDTH: usize = 10;
const CHART_HEIGHT: u64 = 72;
pub(crate) const SECOND: Span = Span::from_secs(1);
pub(crate) const MINUTE: Span = Span::from_secs(60);
/// Characters that need not be encoded in a value of a query string.
const UNENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/').remove(b':');

/// A figure with its name, and what it is about.
pub(crate) fn tile(name: &str, figure: &Markup, note: &Markup) -> Markup {
    html! {
        div.tile {
            dt { (name) }
            dd.figure { (figure) }
            dd.note { (note) }
        }
    }
}

/// A table whose first columns have texts, and the others numbers.
pub(crate) fn table(texts: &[&str], numbers: &[&str], rows: &Markup) -> Markup {
    html! {
        div.scroll tabindex="0" {
            table {
                thead { tr {
                    @for name in texts { th scope="col" { (name) } }
                    @for name in numbers { th.number scope="col" { (name) } }
                } }
                tbody { (rows) }
            }
        }
    }
}

/// A text of clients, which may be long, in a few lines. All of it is in the tooltip.
pub(crate) fn clamped(text: &str) -> Markup {
    html! { span.clamp title=(text) { (text) } }
}

/// The times of the bars of a chart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeAxis {
    /// A time within the last bar.
    pub(crate) last: Time,
    /// The period of a bar: a second, or minutes.
    pub(crate) bar: Span,
}

impl TimeAxis {
    /// The time when a bar begins that has this many others after it.
    fn start(self, others: usize) -> String {
        let bar = self.bar.as_micros().max(1);
        let number = (self.last.as_micros() / bar).saturating_sub(others as u64);
        let mut start = clock_time(Time::from_micros(number * bar));
        if self.bar > SECOND {
            start.truncate("13:52".len());
        }
        start
    }

    fn of_bar(self) -> String {
        match self.bar.ceil_secs() {
            1 => "a second".to_owned(),
            60 => "a minute".to_owned(),
            secs => format!("in {} minutes", secs / 60),
        }
    }
}

/// Hits of each bar, with the part over limit.
pub(crate) fn chart(chart: &[HitCounts], axis: TimeAxis) -> Markup {
    let most = chart.iter().map(|bar| bar.hits).max().unwrap_or(0);
    let mut sum = HitCounts::default();
    for bar in chart {
        sum.add(*bar);
    }
    let height = |count: u64| {
        let height = u128::from(count) * u128::from(CHART_HEIGHT);
        height.div_ceil(u128::from(most.max(1)))
    };
    let above = |height: u128| u128::from(CHART_HEIGHT) - height;
    let last = chart.len().saturating_sub(1);
    let from = axis.start(last);
    let of_bar = axis.of_bar();
    let HitCounts { hits, over_limit } = sum;
    let label =
        format!("From {from}: {hits} hits, {over_limit} over limit, at most {most} hits {of_bar}");
    let width = chart.len() * BAR_WIDTH;
    html! {
        figure.chart {
            div.plot {
                div.scale aria-hidden="true" { span { (most) } span { (most / 2) } span { "0" } }
                svg role="img" aria-label=(label) viewBox={ "0 0 " (width) " " (CHART_HEIGHT) } preserveAspectRatio="none" {
                    @for (index, bar) in chart.iter().enumerate() {
                        g {
                            title { (axis.start(last - index)) ": " (bar.hits) " hits, " (bar.over_limit) " over limit" }
                            rect.slot x=(index * BAR_WIDTH) y="0" width=(BAR_WIDTH) height=(CHART_HEIGHT) {}
                            @let (x, width) = (index * BAR_WIDTH + 1, BAR_WIDTH - 2);
                            @let [hits, over] = [bar.hits, bar.over_limit].map(height);
                            @let [above_hits, above_over] = [hits, over].map(above);
                            rect.hits x=(x) y=(above_hits) width=(width) height=(hits) {}
                            rect.over x=(x) y=(above_over) width=(width) height=(over) {}
                        }
                    }
                }
                div.times aria-hidden="true" { span { (from) } span { (axis.start(last / 2)) } span { (axis.start(0)) } }
            }
            figcaption {
                span { span.key.hits {} (hits) " hits " span.key.over {} (over_limit) " over limit " }
                span.dim { "at most " (most) " " (of_bar) }
                // The script shows the bar under the pointer.
                output.readout data-keep {}
            }
        }
    }
}

/// How much of a limit is used.
pub(crate) fn bar(used: u64, capacity: u64) -> Markup {
    let percent = (used.saturating_mul(100) / capacity.max(1)).min(100);
    let class = match percent {
        100 => "over",
        80.. => "near",
        _ => "within",
    };
    html! {
        span.use {
            svg.bar aria-hidden="true" viewBox="0 0 100 6" preserveAspectRatio="none" {
                rect.track width="100" height="6" {}
                rect.(class) width=(percent) height="6" {}
            }
            span { (used) " of " (capacity) }
        }
    }
}

/// A part in percent, with one digit behind the point; a dash of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    let tenths = u128::from(part) * 1_000 / u128::from(whole);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// A time in a unit that suits it.
pub(crate) fn seconds(seconds: f64) -> String {
    let (number, unit) = match seconds {
        ..0.001 => (seconds * 1e6, "µs"),
        ..1.0 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    if number < 10.0 { format!("{number:.1} {unit}") } else { format!("{number:.0} {unit}") }
}

/// A duration of a process.
pub(crate) fn duration(seconds: u64) -> String {
    let days = seconds / 86_400;
    let hours = seconds / 3_600 % 24;
    let minutes = seconds / 60 % 60;
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// The time of the day in UTC, such as `13:52:07`.
pub(crate) fn clock_time(time: Time) -> String {
    let text = time.to_rfc3339_secs();
    let time = text.split(['T', 'Z']).nth(1);
    time.unwrap_or_default().to_owned()
}

/// A value of a query string.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, UNENCODED).to_string()
}

/// Since a start: the time of the day in UTC, with the day unless it is today.
pub(crate) fn since(start: Time, now: Time) -> String {
    let [start, now] = [start, now].map(Time::to_rfc3339_secs);
    let (day, time) = start.split_once('T').unwrap_or_default();
    let time = time.get(.."13:52".len()).unwrap_or_default();
    if now.starts_with(day) { format!("since {time}") } else { format!("since {day} {time}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_has_its_day_unless_it_is_today() {
        let time = |text| Time::from_rfc3339(text).expect("a time");
        let now = time("2026-11-25T14:00:00Z");
        assert_eq!(since(time("2026-11-25T13:52:07Z"), now), "since 13:52");
        let yesterday = time("2026-11-24T13:52:07Z");
        assert_eq!(since(yesterday, now), "since 2026-11-24 13:52");
    }

    #[test]
    fn figures_are_short() {
        let times = [0.000_35, 0.012, 0.25, 2.0].map(seconds);
        assert_eq!(times, ["350 µs", "12 ms", "250 ms", "2.0 s"]);
        assert_eq!(percent(0, 0), "–");
        assert_eq!([percent(1, 3), percent(3, 3)], ["33.3 %", "100.0 %"]);
        let ages = [59, 61, 7_260, 180_000].map(duration);
        assert_eq!(ages, ["59 s", "1 min", "2 h 1 min", "2 d 2 h"]);
    }

    #[test]
    fn every_count_that_is_not_zero_has_a_bar() {
        let axis = TimeAxis { last: Time::default(), bar: MINUTE };
        for hits in [1_000_000, u64::MAX] {
            let bars = [(hits, 1), (0, 0)];
            let bars = bars.map(|(hits, over_limit)| HitCounts { hits, over_limit });
            let shown = chart(&bars, axis).into_string();
            assert_eq!(shown.matches(r#"height="1""#).count(), 1, "{shown}");
            assert_eq!(shown.matches(r#"height="0""#).count(), 2, "{shown}");
        }
    }

    #[test]
    fn axis_has_the_times_of_bars() {
        let last = Time::from_rfc3339("2026-11-25T00:01:30.5Z").expect("a time");
        for (bar, expected) in [
            (SECOND, ["00:01:30", "00:01:29", "00:00:31"]),
            (MINUTE, ["00:01", "00:00", "23:02"]),
            (Span::from_secs(300), ["00:00", "23:55", "19:05"]),
        ] {
            let axis = TimeAxis { last, bar };
            assert_eq!([0, 1, 59].map(|others| axis.start(others)), expected);
        }
    }
}
