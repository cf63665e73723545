//! Lines in the formats of statsd and DogStatsD, and the packets that they share.

use std::collections::VecDeque;
use std::fmt::Write as _;

use crate::telemetry::deltas::Delta;
use crate::telemetry::dogstatsd::{Tagged, Tagging};

/// The format of a line.
#[derive(Debug, Clone)]
pub enum Form {
    /// Tags are a suffix of the name: this one.
    Statsd(String),
    /// Tags follow the value.
    DogStatsd(Tagging),
}

/// Lines that are sent together.
#[derive(Debug, Default)]
pub(super) struct Packet {
    pub(super) text: String,
    pub(super) lines: u64,
}

/// Full packets and the one that lines are added to.
#[derive(Debug)]
pub(super) struct Packets {
    bytes_max: usize,
    full: VecDeque<Packet>,
    open: Packet,
}

impl Packets {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            full: VecDeque::new(),
            open: Packet::default(),
        }
    }

    /// Adds a line; one that is longer than a packet has a packet of its own.
    pub(super) fn add(&mut self, line: &str) {
        if self.open.text.len() + line.len() > self.bytes_max {
            self.close();
        }
        self.open.text.push_str(line);
        self.open.lines += 1;
    }

    /// Makes the open packet a full one.
    pub(super) fn close(&mut self) {
        let packet = std::mem::take(&mut self.open);
        if packet.lines > 0 {
            self.full.push_back(packet);
        }
    }

    pub(super) fn pop_full(&mut self) -> Option<Packet> {
        self.full.pop_front()
    }

    /// Lines of the full packets.
    pub(super) fn full_lines(&self) -> u64 {
        self.full.iter().map(|packet| packet.lines).sum()
    }
}

impl Form {
    /// Writes the line of a delta, and returns how many times it is to be sent.
    pub(super) fn write(&self, line: &mut String, name: &str, delta: &Delta) -> u64 {
        line.clear();
        let tagged = match self {
            Self::Statsd(suffix) => Tagged {
                name: format!("{name}{suffix}"),
                tags: String::new(),
            },
            Self::DogStatsd(tagging) => tagging.tag(name),
        };
        // These would end the name or the line. Mogrifiers and domains may have them.
        let name = tagged.name.replace([':', '|', '\n'], "_");
        let mut times = 1;
        // Writing to a String cannot fail.
        let _ = match delta {
            Delta::Increment(count) => write!(line, "{name}:{count}|c"),
            Delta::Gauge(value) => write!(line, "{name}:{value}|g"),
            Delta::Timing {
                millis,
                lines,
                calls_per_line,
            } => {
                times = *lines;
                let rate = if *calls_per_line > 1.0 {
                    format!("|@{:.6}", 1.0 / calls_per_line)
                } else {
                    String::new()
                };
                write!(line, "{name}:{millis}|ms{rate}")
            }
        };
        let _ = writeln!(line, "{}", tagged.tags);
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::environment::Environment;
    use crate::telemetry::tags::Tags;

    #[test]
    fn lines_share_packets_and_a_long_line_has_its_own() {
        let mut packets = Packets::new(1_432);
        for length in [700, 700, 700, 2_000, 10] {
            packets.add(&"x".repeat(length));
        }
        packets.close();
        packets.close();
        let sizes: Vec<(usize, u64)> = packets
            .full
            .iter()
            .map(|packet| (packet.text.len(), packet.lines))
            .collect();
        assert_eq!(sizes, [(1_400, 2), (700, 1), (2_000, 1), (10, 1)]);
    }

    fn written(form: &Form, name: &str, delta: &Delta) -> (u64, String) {
        let mut line = String::from("of before");
        (form.write(&mut line, name, delta), line)
    }

    #[test]
    fn lines_are_in_the_format_of_statsd_or_dogstatsd() {
        let statsd = Form::Statsd(".__zone=eu_west".to_owned());
        let took = Delta::Timing {
            millis: 0.5,
            lines: 900,
            calls_per_line: 100.0,
        };
        assert_eq!(
            written(&statsd, "a.b", &Delta::Increment(3)),
            (1, "a.b.__zone=eu_west:3|c\n".to_owned())
        );
        assert_eq!(
            written(&statsd, "a:b|c", &Delta::Gauge(3)),
            (1, "a_b_c.__zone=eu_west:3|g\n".to_owned())
        );
        assert_eq!(
            written(&statsd, "t", &took),
            (900, "t.__zone=eu_west:0.5|ms|@0.010000\n".to_owned())
        );

        let tags = Tags::read("zone:eu.west").expect("a tag");
        let dog = Form::DogStatsd(
            Tagging::read(&tags, "", &Environment::default()).expect("no mogrifier"),
        );
        assert_eq!(
            written(&dog, "a.b", &Delta::Increment(3)),
            (1, "a.b:3|c|#zone:eu_west\n".to_owned())
        );
        assert_eq!(
            written(&dog, "t", &took),
            (900, "t:0.5|ms|@0.010000|#zone:eu_west\n".to_owned())
        );
    }
}
