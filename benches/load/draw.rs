//! Picks which value a request carries.
//!
//! No crate: picks need to be fast, even and repeatable, nothing more, and the generator of a few
//! lines below is all of that.

use crate::load::args::{Args, Pick};

/// SplitMix64: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014.
pub struct Random(u64);

/// Zipf's law over `1..=n` without a table of n entries: rejection-inversion by W. Hörmann and G.
/// Derflinger, 1996. A draw takes a little more than one attempt on average, whatever n is.
pub struct Zipf {
    exponent: f64,
    n: f64,
    area_from: f64,
    area_to: f64,
    sure: f64,
}

/// A way to pick a value's number.
pub enum Draw {
    /// Any of so many.
    Uniform(u32),
    /// The first ones most.
    Zipf(Zipf),
    /// The place of the descriptor in its request.
    One,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n`: a multiplication instead of a division (D. Lemire, 2019); its bias for n < 2^32
    /// is below 2^-32.
    fn below(&mut self, n: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u32
    }

    /// In `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl Zipf {
    pub fn new(n: u32, exponent: f64) -> Self {
        let mut zipf = Self {
            exponent,
            n: f64::from(n),
            area_from: 0.0,
            area_to: 0.0,
            sure: 0.0,
        };
        zipf.area_from = zipf.area(1.5) - 1.0;
        zipf.area_to = zipf.area(zipf.n + 0.5);
        zipf.sure = 2.0 - zipf.at_area(zipf.area(2.5) - zipf.weight(2.0));
        zipf
    }

    /// A rank from 0, the most frequent.
    fn draw(&self, random: &mut Random) -> u32 {
        loop {
            let area = self.area_to + random.unit() * (self.area_from - self.area_to);
            let x = self.at_area(area);
            let rank = x.round().clamp(1.0, self.n);
            if rank - x <= self.sure || area >= self.area(rank + 0.5) - self.weight(rank) {
                return rank as u32 - 1;
            }
        }
    }

    fn weight(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// The integral of `weight` up to x, but for a constant.
    fn area(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.exponent) * log;
        // (e^t - 1) / t goes to 1 where the exponent goes to 1: there the integral is the
        // logarithm.
        if t.abs() < 1e-9 {
            log
        } else {
            t.exp_m1() / t * log
        }
    }

    /// Where `area` has a value.
    fn at_area(&self, area: f64) -> f64 {
        let t = area * (1.0 - self.exponent);
        if t.abs() < 1e-9 {
            area.exp()
        } else {
            (t.max(-1.0).ln_1p() / t * area).exp()
        }
    }
}

impl Draw {
    pub fn new(args: &Args) -> Self {
        match args.pick {
            Pick::Uniform => Self::Uniform(args.keys),
            Pick::Zipf => Self::Zipf(Zipf::new(args.keys, args.zipf_exponent)),
            Pick::One => Self::One,
        }
    }

    /// The value's number for the descriptor at this place of a request.
    pub fn pick(&self, random: &mut Random, place: u32) -> u32 {
        match self {
            Self::Uniform(n) => random.below(*n),
            Self::Zipf(zipf) => zipf.draw(random),
            Self::One => place,
        }
    }
}
