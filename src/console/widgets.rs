//! Parts of views: charts, bars and figures. Counts are whole numbers, as on /metrics.

use maud::{Markup, html};

use crate::console::history::Chart;

/// Units of a chart.
const BAR_WIDTH: usize = 10;
const CHART_HEIGHT: u64 = 72;

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

/// Hits of each of the last 60 minutes, with the part over limit.
pub(crate) fn chart(chart: &Chart) -> Markup {
    bars(chart, 1)
}

/// Hits of each of the last periods of some minutes, with the part over limit.
pub(crate) fn bars(chart: &Chart, minutes: usize) -> Markup {
    let most = chart.iter().map(|[hits, _]| *hits).max().unwrap_or(0);
    let [hits, over] = [0, 1].map(|kind| chart.iter().map(|minute| minute[kind]).sum::<u64>());
    let height = |count: u64| {
        (count * CHART_HEIGHT)
            .div_ceil(most.max(1))
            .min(CHART_HEIGHT)
    };
    let of_bar = match minutes {
        1 => "a minute".to_owned(),
        _ => format!("in {minutes} minutes"),
    };
    let label =
        format!("Last 60 minutes: {hits} hits, {over} over limit, at most {most} hits {of_bar}");
    let width = chart.len() * BAR_WIDTH;
    html! {
        figure.chart {
            svg role="img" aria-label=(label) viewBox={ "0 0 " (width) " " (CHART_HEIGHT) } preserveAspectRatio="none" {
                @for (index, [hits, over]) in chart.iter().enumerate() {
                    @let ago = (chart.len() - 1 - index) * minutes;
                    g {
                        title { (minutes_ago(ago)) ": " (hits) " hits, " (over) " over limit" }
                        rect.slot x=(index * BAR_WIDTH) y="0" width=(BAR_WIDTH) height=(CHART_HEIGHT) {}
                        @let (x, width) = (index * BAR_WIDTH + 1, BAR_WIDTH - 2);
                        @let (hits, over) = (height(*hits), height(*over));
                        rect.hits x=(x) y=(CHART_HEIGHT - hits) width=(width) height=(hits) {}
                        rect.over x=(x) y=(CHART_HEIGHT - over) width=(width) height=(over) {}
                    }
                }
            }
            figcaption {
                span { "60 min ago" }
                span {
                    span.key.hits {} (hits) " hits " span.key.over {} (over) " over limit "
                    span.dim { "· at most " (most) " " (of_bar) }
                }
                span { "now" }
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
    if number < 10.0 {
        format!("{number:.1} {unit}")
    } else {
        format!("{number:.0} {unit}")
    }
}

/// A duration of a process.
pub(crate) fn duration(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

fn minutes_ago(minutes: usize) -> String {
    match minutes {
        0 => "now".to_owned(),
        _ => format!("{minutes} min ago"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let shown = bars(&vec![[1_000_000, 1], [0, 0]], 1).into_string();
        assert_eq!(shown.matches(r#"height="1""#).count(), 1, "{shown}");
        assert_eq!(shown.matches(r#"height="0""#).count(), 2, "{shown}");
    }
}
