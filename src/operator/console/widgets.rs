//! Parts of views: charts, bars and figures. Counts are whole numbers, as on /metrics.

use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::base::time::{Span, Time};
use crate::operator::observe::history::Bar;

/// Units of a chart.
const BAR_WIDTH: usize = 10;
const CHART_HEIGHT: u64 = 72;
/// Calls and hits over a limit that does not reject them.
pub(crate) const ADMITTED: &str = "admitted over a limit";
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

/// The frame of a chart: its bars, a scale, and the times of both ends and the middle.
pub(crate) struct Frame {
    /// What the chart shows, for readers of the screen.
    pub(crate) label: String,
    /// The value of the highest bar, of the half and of none.
    pub(crate) scale: [String; 3],
    pub(crate) times: [String; 3],
    pub(crate) bars: Vec<Column>,
}

/// A bar of a chart, which has a height and a class for each part, the lowest on top.
#[derive(Debug)]
pub(crate) struct Column {
    /// For its tooltip, and below the chart.
    pub(crate) text: String,
    pub(crate) parts: Vec<(u64, &'static str)>,
}

impl Frame {
    pub(crate) fn shown(&self, caption: &Markup) -> Markup {
        let parts = self.bars.iter().flat_map(|bar| &bar.parts);
        let most = parts.map(|(value, _)| *value).max().unwrap_or(0).max(1);
        let height = |count: u64| {
            let height = u128::from(count) * u128::from(CHART_HEIGHT);
            height.div_ceil(u128::from(most))
        };
        let width = self.bars.len() * BAR_WIDTH;
        html! {
            figure.chart {
                div.plot {
                    div.scale aria-hidden="true" { @for value in &self.scale { span { (value) } } }
                    svg role="img" aria-label=(self.label) viewBox={ "0 0 " (width) " " (CHART_HEIGHT) } preserveAspectRatio="none" {
                        @for (index, bar) in self.bars.iter().enumerate() {
                            @let x = index * BAR_WIDTH;
                            g {
                                title { (bar.text) }
                                rect.slot x=(x) y="0" width=(BAR_WIDTH) height=(CHART_HEIGHT) {}
                                @for (value, class) in &bar.parts {
                                    @let high = height(*value);
                                    @let (x, y) = (x + 1, u128::from(CHART_HEIGHT) - high);
                                    rect.(*class) x=(x) y=(y) width=(BAR_WIDTH - 2) height=(high) {}
                                }
                            }
                        }
                    }
                    div.times aria-hidden="true" { @for time in &self.times { span { (time) } } }
                }
                figcaption {
                    (caption)
                    // The script shows the bar under the pointer.
                    output.readout data-keep {}
                }
            }
        }
    }
}

/// The scale of a chart of whole numbers.
pub(crate) fn scale(most: u64) -> [String; 3] {
    let half = if most > 1 { number(most / 2) } else { String::new() };
    [number(most), half, "0".to_owned()]
}

/// Calls or hits of each bar, with the parts over limit.
pub(crate) fn chart(chart: &[Bar], axis: TimeAxis, unit: &str) -> Markup {
    let most = chart.iter().map(|bar| bar.all).max().unwrap_or(0);
    let mut sum = Bar::default();
    for bar in chart {
        sum.add(*bar);
    }
    let last = chart.len().saturating_sub(1);
    let from = axis.start(last);
    let counts = |bar: &Bar| {
        let [all, over, admitted] = [bar.all, bar.over_limit, bar.admitted].map(number);
        let passed =
            if bar.admitted > 0 { format!(", {admitted} {ADMITTED}") } else { String::new() };
        format!("{all} {unit}, {over} over limit{passed}")
    };
    let at_most = format!("at most {} {unit} {}", number(most), axis.of_bar());
    let bars = chart.iter().enumerate().map(|(index, bar)| {
        let text = format!("{}: {}", axis.start(last - index), counts(bar));
        let admitted = (bar.admitted > 0).then(|| (bar.over_limit + bar.admitted, "near"));
        let mut parts = vec![(bar.all, "hits")];
        parts.extend(admitted);
        parts.push((bar.over_limit, "over"));
        Column { text, parts }
    });
    let frame = Frame {
        label: format!("From {from}: {}, {at_most}", counts(&sum)),
        scale: scale(most),
        times: [from, axis.start(last / 2), axis.start(0)],
        bars: bars.collect(),
    };
    frame.shown(&html! {
        span {
            span.key.hits {} (number(sum.all)) " " (unit) " "
            span.key.over {} (number(sum.over_limit)) " over limit "
            @if sum.admitted > 0 { span.key.near {} (number(sum.admitted)) " " (ADMITTED) " " }
        }
        span.dim { (at_most) }
    })
}

/// A count of what was rejected, with what was admitted over the limit, by its reason.
pub(crate) fn over_limit(over: u64, admitted: u64, by: &str) -> Markup {
    html! {
        td.number.over[over > 0] {
            @if admitted > 0 { (admitted_tag(admitted, by)) " " }
            (number(over))
        }
    }
}

/// How much was admitted over a limit, by its reason.
pub(crate) fn admitted_tag(admitted: u64, by: &str) -> Markup {
    html! { span.tag title=(ADMITTED) { (by) " " (number(admitted)) } }
}

/// A whole number with separators, such as `4,500,000`.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// How much of a limit is used. Hits over the limit may count, too.
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
            span {
                (number(used.min(capacity))) " of " (number(capacity))
                @if used > capacity { span.dim { ", " (number(used - capacity)) " more over limit" } }
            }
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

/// A time in RFC 3339 in UTC, to the second; another text as it is.
pub(crate) fn moment(text: &str) -> String {
    let time = Time::from_rfc3339(text).map(Time::to_rfc3339_secs);
    let text = time.as_deref().unwrap_or(text);
    match text.split_once('T') {
        Some((date, time)) => format!("{date} {} UTC", time.get(..8).unwrap_or(time)),
        None => text.to_owned(),
    }
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
        assert_eq!(moment("2026-12-01T00:00:00+01:00"), "2026-11-30 23:00:00 UTC");
        assert_eq!(moment("now"), "now");
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
        let counts = [0, 999, 1_000, 4_500_000].map(number);
        assert_eq!(counts, ["0", "999", "1,000", "4,500,000"]);
        let ages = [59, 61, 7_260, 180_000].map(duration);
        assert_eq!(ages, ["59 s", "1 min", "2 h 1 min", "2 d 2 h"]);
    }

    #[test]
    fn every_count_that_is_not_zero_has_a_bar() {
        let axis = TimeAxis { last: Time::default(), bar: MINUTE };
        for hits in [1_000_000, u64::MAX] {
            let bars = [(hits, 1), (0, 0)];
            let bars = bars.map(|(all, over_limit)| Bar { all, over_limit, admitted: 0 });
            let shown = chart(&bars, axis, "hits").into_string();
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
