//! The modifiers of an opcode. The decoder takes each one; a modifier that is left over is unsupported.

use crate::lanes::float::Mode;
use crate::lanes::rounding::Rounding;
use crate::ptx::Type;
use std::cell::RefCell;

/// The reason why an instruction is not decoded.
pub(super) type Unsupported = String;

/// An opcode such as `ld.global.nc.v4.f32`.
pub(super) struct Opcode<'a> {
    pub name: &'a str,
    /// The modifiers that were not taken yet.
    rest: RefCell<Vec<&'a str>>,
}

impl<'a> Opcode<'a> {
    pub fn new(text: &'a str) -> Opcode<'a> {
        let mut parts = text.split('.');
        let name = parts.next().expect("a split has a first part");
        Opcode {
            name,
            rest: RefCell::new(parts.collect()),
        }
    }

    /// Takes the modifier `word`; true if it was there.
    pub fn accept(&self, word: &str) -> bool {
        let mut rest = self.rest.borrow_mut();
        let found = rest.iter().position(|&part| part == word);
        found.map(|i| rest.remove(i)).is_some()
    }

    /// Takes the first modifier that `choose` maps to something.
    pub fn take<T>(&self, choose: impl Fn(&str) -> Option<T>) -> Option<T> {
        let mut rest = self.rest.borrow_mut();
        let (index, value) = rest
            .iter()
            .enumerate()
            .find_map(|(i, part)| choose(part).map(|v| (i, v)))?;
        rest.remove(index);
        Some(value)
    }

    /// Takes the first type.
    pub fn ty(&self) -> Result<Type, Unsupported> {
        self.take(Type::parse)
            .ok_or_else(|| "an opcode without a type".into())
    }

    /// Drops all modifiers that were not taken yet.
    pub fn ignore_rest(&self) {
        self.rest.borrow_mut().clear();
    }

    /// Drops modifiers without effect in the emulator: caching, ordering and scope.
    pub fn ignore_hints(&self) {
        self.rest.borrow_mut().retain(|part| {
            let is_hint = matches!(
                *part,
                "nc" | "volatile"
                    | "weak"
                    | "relaxed"
                    | "acquire"
                    | "release"
                    | "acq_rel"
                    | "ca"
                    | "cg"
                    | "cs"
                    | "cv"
                    | "lu"
                    | "wb"
                    | "wt"
                    | "cta"
                    | "cluster"
                    | "gpu"
                    | "sys"
                    | "aligned"
                    | "uni"
            );
            !is_hint && !part.starts_with("L1::") && !part.starts_with("L2::")
        });
    }

    /// True if a modifier of `first` stands before one of `second`; `None` unless there is one of each.
    pub fn order(&self, first: &[&str], second: &[&str]) -> Option<bool> {
        let rest = self.rest.borrow();
        let place = |of: &[&str]| rest.iter().position(|part| of.contains(part));
        Some(place(first)? < place(second)?)
    }

    /// True if the rounding modifier, not taken yet, rounds to an integer.
    pub fn rounds_to_integer(&self) -> bool {
        let rest = self.rest.borrow();
        rest.iter()
            .any(|part| matches!(*part, "rni" | "rzi" | "rmi" | "rpi"))
    }

    /// Takes the rounding and the other modes of floating-point arithmetic.
    pub fn mode(&self) -> Mode {
        let rounding = self.take(|part| {
            Some(match part {
                "rn" | "rni" => Rounding::Nearest,
                "rz" | "rzi" => Rounding::Zero,
                "rm" | "rmi" => Rounding::Down,
                "rp" | "rpi" => Rounding::Up,
                _ => return None,
            })
        });
        let _ = self.accept("approx") || self.accept("full");
        Mode {
            rounding: rounding.unwrap_or(Rounding::Nearest),
            flush: self.accept("ftz"),
            saturate: self.accept("sat"),
            propagate_nan: self.accept("NaN"),
        }
    }

    /// Fails if a modifier was not taken.
    pub fn finish(&self) -> Result<(), Unsupported> {
        match self.rest.borrow().first() {
            None => Ok(()),
            Some(part) => Err(format!("unsupported modifier `.{part}`")),
        }
    }
}
