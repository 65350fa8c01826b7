//! The full sweep: everything in the suites of which a run of the tests takes a share. `KILN_FULL_SWEEP=1` requests
//! it, `KILN_SWEEP_PART=3/8` the third of eight parts, so that it can be spread over many runs.

use std::ops::Range;

/// The seeds of a test of random programs: `count` from 0 on, unless `KILN_FUZZ_SEEDS` sets the number and
/// `KILN_FUZZ_FIRST` the first one.
pub fn seeds(count: u64) -> Range<u64> {
    let number_of = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let first_seed = number_of("KILN_FUZZ_FIRST").unwrap_or(0);
    first_seed..first_seed + number_of("KILN_FUZZ_SEEDS").unwrap_or(count)
}

/// A part of the full sweep.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    part: usize,
    of: usize,
}

impl Sweep {
    /// The sweep that the environment requests; `None` for the usual shares.
    ///
    /// # Panics
    /// If `KILN_SWEEP_PART` is not a part.
    pub fn wanted() -> Option<Sweep> {
        if std::env::var("KILN_FULL_SWEEP").is_ok_and(|v| v == "1") {
            let text = std::env::var("KILN_SWEEP_PART").unwrap_or("1/1".into());
            let part = Sweep::parse(&text);
            return Some(part.unwrap_or_else(|| panic!("KILN_SWEEP_PART={text} is not like 3/8")));
        }
        None
    }

    fn parse(text: &str) -> Option<Sweep> {
        let (part, of) = text.split_once('/')?;
        let (part, of) = (part.parse().ok()?, of.parse().ok()?);
        (1 <= part && part <= of).then_some(Sweep { part, of })
    }

    /// True if it is the whole sweep.
    pub fn is_whole(&self) -> bool {
        self.of == 1
    }

    /// The range of `items` items that belongs to this part. Each item belongs to exactly one part.
    pub fn share(&self, items: usize) -> Range<usize> {
        let from = |part| items * part / self.of;
        from(self.part - 1)..from(self.part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_whole() {
        for (items, of) in [(10, 3), (1, 4), (0, 2), (7, 7), (5, 1)] {
            let parts = (1..=of).map(|part| Sweep { part, of });
            let shares: Vec<usize> = parts.flat_map(|p| p.share(items)).collect();
            assert_eq!(shares, (0..items).collect::<Vec<_>>());
        }
        assert_eq!(Sweep::parse("3/8"), Some(Sweep { part: 3, of: 8 }));
        for text in ["0/2", "3/2", "1", "x/2", ""] {
            assert_eq!(Sweep::parse(text), None);
        }
    }
}
