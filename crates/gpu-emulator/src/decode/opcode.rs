//! The modifiers of an opcode. The decoder takes each one; a modifier that is left over is unsupported.

use crate::lanes::float::Mode;
use crate::lanes::rounding::Rounding;
use crate::ptx::{Space, Type};

/// The reason why an instruction is not decoded.
pub(super) type Unsupported = String;

/// An opcode such as `ld.global.nc.v4.f32`.
pub(super) struct Opcode<'a> {
    pub name: &'a str,
    /// The modifiers that were not taken yet.
    rest: Vec<&'a str>,
}

impl<'a> Opcode<'a> {
    pub fn new(text: &'a str) -> Opcode<'a> {
        let mut words = text.split('.');
        let name = words.next().expect("a split has a first part");
        Opcode {
            name,
            rest: words.collect(),
        }
    }

    /// Takes the modifier `word`; true if it was there.
    pub fn accept(&mut self, word: &str) -> bool {
        self.take(|part| (part == word).then_some(())).is_some()
    }

    /// Takes the modifiers `words` where they are.
    pub fn skip(&mut self, words: &[&str]) {
        self.rest.retain(|modifier| !words.contains(modifier));
    }

    /// Takes the first modifier that `choose` maps to something.
    pub fn take<T>(&mut self, choose: impl Fn(&str) -> Option<T>) -> Option<T> {
        let modifiers = self.rest.iter().enumerate();
        let (index, value) =
            { modifiers }.find_map(|(i, modifier)| Some((i, choose(modifier)?)))?;
        self.rest.remove(index);
        Some(value)
    }

    /// Takes the first modifier of a table.
    pub fn choose<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        let row = |modifier: &str| table.iter().find(|(word, _)| *word == modifier);
        self.take(|modifier| Some(row(modifier)?.1))
    }

    /// Takes the first modifier that is one of `words`.
    pub fn one_of(&mut self, words: &[&'static str]) -> Option<&'static str> {
        self.take(|modifier| words.iter().copied().find(|word| *word == modifier))
    }

    /// Takes the first type.
    pub fn ty(&mut self) -> Result<Type, Unsupported> {
        self.take(Type::parse)
            .ok_or_else(|| "an opcode without a type".into())
    }

    /// Takes the first space.
    pub fn space(&mut self) -> Space {
        let space = |modifier: &str| match modifier {
            "global" | "const" => Some(Space::Global),
            "shared" | "shared::cta" | "shared::cluster" => Some(Space::Shared),
            "local" => Some(Space::Local),
            "param" | "param::entry" | "param::func" => Some(Space::Param),
            _ => None,
        };
        self.take(space).unwrap_or(Space::Generic)
    }

    /// Drops all modifiers that were not taken yet.
    pub fn ignore_rest(&mut self) {
        self.rest.clear();
    }

    /// Drops modifiers without effect in the emulator: caching, ordering and scope.
    pub fn ignore_hints(&mut self) {
        const HINTS: [&str; 20] = [
            "nc", "volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "ca", "cg", "cs",
            "cv", "lu", "wb", "wt", "cta", "cluster", "gpu", "sys", "aligned", "uni",
        ];
        self.rest.retain(|modifier| {
            !HINTS.contains(modifier)
                && !modifier.starts_with("L1::")
                && !modifier.starts_with("L2::")
        });
    }

    /// True if a modifier of `first` stands before one of `second`; `None` unless there is one of each.
    pub fn order(&self, first: &[&str], second: &[&str]) -> Option<bool> {
        let position = |names: &[&str]| self.rest.iter().position(|part| names.contains(part));
        Some(position(first)? < position(second)?)
    }

    /// True if the rounding modifier, not taken yet, rounds to an integer.
    pub fn rounds_to_integer(&self) -> bool {
        let to_integer = ["rni", "rzi", "rmi", "rpi"];
        self.rest
            .iter()
            .any(|modifier| to_integer.contains(modifier))
    }

    /// Takes the rounding and the other modes of floating-point arithmetic.
    pub fn mode(&mut self) -> Mode {
        let rounding = |modifier: &str| match modifier {
            "rn" | "rni" => Some(Rounding::Nearest),
            "rz" | "rzi" => Some(Rounding::Zero),
            "rm" | "rmi" => Some(Rounding::Down),
            "rp" | "rpi" => Some(Rounding::Up),
            _ => None,
        };
        let rounding = self.take(rounding);
        self.skip(&["approx", "full"]);
        Mode {
            rounding: rounding.unwrap_or(Rounding::Nearest),
            flush: self.accept("ftz"),
            saturate: self.accept("sat"),
            propagate_nan: self.accept("NaN"),
        }
    }

    /// Fails if a modifier was not taken.
    pub fn finish(&self) -> Result<(), Unsupported> {
        match self.rest.first() {
            None => Ok(()),
            Some(part) => Err(format!("unsupported modifier `.{part}`")),
        }
    }
}
