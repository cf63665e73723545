//! Charts of the last hour of Redis: how fast it answered, and the checks that it did not decide.

use maud::{Markup, html};

use crate::console::widgets::{clock_minute, seconds};
use crate::observe::store_watch::Minute;
use crate::observe::store_watch::diagnosis::{ByCause, SLOW, causes};

/// Units of a chart.
const BAR_WIDTH: usize = 10;
const HEIGHT: f64 = 72.0;

/// A part of a bar: its class, and what it counts or times.
type Part = (&'static str, f64);

pub(crate) fn charts(hour: &[Minute]) -> Markup {
    html! {
        (latencies(hour))
        (undecided(hour))
    }
}

fn latencies(hour: &[Minute]) -> Markup {
    let bars = hour.iter().map(|minute| match minute.latency {
        Some([median, p99]) => {
            let class = if p99 > SLOW { "near" } else { "hits" };
            let title = format!("{} (p99), half within {}", seconds(p99), seconds(median));
            (title, vec![(class, p99), ("median", median)])
        }
        None => ("no calls".to_owned(), Vec::new()),
    });
    let worst = hour.iter().filter_map(|minute| minute.latency);
    let worst = worst.map(|[_, p99]| p99).fold(0.0, f64::max);
    let about = format!(
        "Latency of Redis (p99) of each minute: at most {}; amber above {}",
        seconds(worst),
        seconds(SLOW)
    );
    chart(hour, &about, &bars.collect::<Vec<_>>())
}

#[expect(clippy::cast_precision_loss, reason = "heights of bars")]
fn undecided(hour: &[Minute]) -> Markup {
    let mut of_hour = ByCause::default();
    for minute in hour {
        for (sum, count) in of_hour.iter_mut().zip(minute.undecided) {
            *sum += count;
        }
    }
    let about = match causes(&of_hour) {
        none if none.is_empty() => "The store decided every check of the last hour".to_owned(),
        causes => format!("Checks that the store did not decide: {causes}"),
    };
    let bars = hour.iter().map(|minute| {
        let title = match causes(&minute.undecided) {
            none if none.is_empty() => "none".to_owned(),
            causes => causes,
        };
        let all = minute.undecided.iter().sum::<u64>();
        (title, vec![("over", all as f64)])
    });
    chart(hour, &about, &bars.collect::<Vec<_>>())
}

/// A bar for each minute, with its title; later parts are in front of earlier ones.
fn chart(hour: &[Minute], about: &str, bars: &[(String, Vec<Part>)]) -> Markup {
    let sizes = bars
        .iter()
        .flat_map(|(_, parts)| parts)
        .map(|(_, size)| *size);
    let most = sizes.fold(f64::MIN_POSITIVE, f64::max);
    let width = bars.len() * BAR_WIDTH;
    let at = |minute: Option<&Minute>| minute.map(|minute| clock_minute(minute.number));
    html! {
        figure.chart {
            svg role="img" aria-label=(about) viewBox={ "0 0 " (width) " " (HEIGHT) } preserveAspectRatio="none" {
                @for (index, (minute, (title, parts))) in hour.iter().zip(bars).enumerate() {
                    g {
                        title { (clock_minute(minute.number)) " UTC: " (title) }
                        rect.slot x=(index * BAR_WIDTH) y="0" width=(BAR_WIDTH) height=(HEIGHT) {}
                        @for (class, size) in parts {
                            @let height = (size / most * HEIGHT).ceil();
                            @let (x, y) = (index * BAR_WIDTH + 1, HEIGHT - height);
                            rect.(class) x=(x) y=(y) width=(BAR_WIDTH - 2) height=(height) {}
                        }
                    }
                }
            }
            figcaption {
                span { (at(hour.first()).unwrap_or_default()) }
                span { (about) }
                span { (at(hour.last()).unwrap_or_default()) " UTC" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_of_the_hour_and_slow_minutes_are_shown() {
        let calm = Minute {
            number: 1_000,
            ..Minute::default()
        };
        assert!(
            charts(&[calm])
                .into_string()
                .contains("decided every check of the last hour")
        );
        let mut slow = Minute {
            number: 1_001,
            latency: Some([0.002, 0.095]),
            ..Minute::default()
        };
        slow.undecided[0] = 7;
        let shown = charts(&[calm, slow]).into_string();
        for expected in [
            "16:41 UTC: 7 late",
            "16:41 UTC: 95 ms (p99), half within 2.0 ms",
            "class=\"near\"",
        ] {
            assert!(shown.contains(expected), "{expected}: {shown}");
        }
        let fast = Minute {
            latency: Some([0.001, 0.002]),
            ..calm
        };
        assert!(!charts(&[fast]).into_string().contains("class=\"near\""));
    }
}
