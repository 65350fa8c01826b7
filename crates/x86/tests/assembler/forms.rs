//! All encodings of all vector instructions with random operands, derived from the encodings' names, such as
//! `EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er`.

use fastrand::Rng;
use kiln_x86::{Gpr, Mask, Mem, Op, Operand, Operands, Vreg, Width, op};
use std::ops::Deref;

/// The kind of an operand.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The bytes of a vector register, if allowed; of memory, if allowed; and of an element in memory to broadcast, if
    /// allowed.
    Vector(Option<usize>, Option<usize>, Option<usize>),
    /// A gather, with the bytes of its vector of addresses.
    Gather(usize),
    Mask,
    /// The bytes of a general register; and of memory, if allowed.
    Gpr(usize, Option<usize>),
    Immediate,
}

/// One encoding of an instruction.
pub struct Form {
    pub op: Op,
    pub width: Width,
    pub shape: Shape,
}

impl Deref for Form {
    type Target = Shape;

    fn deref(&self) -> &Shape {
        &self.shape
    }
}

/// The facts that an encoding's name gives.
#[derive(Clone, Debug)]
pub struct Shape {
    pub name: String,
    pub evex: bool,
    pub operands: Vec<Kind>,
    /// True if the result may be masked.
    pub masks: bool,
    /// True if the mask may clear lanes.
    pub clears: bool,
}

/// Returns all encodings.
pub fn all() -> Vec<Form> {
    let mut forms = Vec::new();
    for op in op::ALL {
        for (evex, width) in [
            (false, Width::X),
            (false, Width::Y),
            (true, Width::X),
            (true, Width::Y),
            (true, Width::Z),
        ] {
            if let Some(name) = op.encoding(evex, width) {
                let shape = Shape::new(name).unwrap_or_else(|| panic!("{name} is not known"));
                assert_eq!(shape.evex, evex, "{name}");
                let op = *op;
                forms.push(Form { op, width, shape });
            }
        }
    }
    forms
}

impl Shape {
    /// Parses a name; returns `None` if an operand is not known.
    pub fn new(name: &str) -> Option<Shape> {
        let (mut operands, mut masks, mut clears) = (Vec::new(), false, false);
        let fields: Vec<&str> = name.split('_').collect();
        let encoded = ["VEX", "EVEX"].contains(&fields[0]);
        for field in &fields[if encoded { 2 } else { 1 }..] {
            match *field {
                "k1" => masks = true,
                "k1z" => (masks, clears) = (true, true),
                "er" | "sae" => {}
                field => operands.push(kind(field)?),
            }
        }
        Some(Shape {
            name: name.to_string(),
            evex: fields[0] == "EVEX",
            operands,
            masks,
            clears,
        })
    }

    /// True for a gather.
    pub fn gathers(&self) -> bool {
        self.operands.iter().any(|k| matches!(k, Kind::Gather(_)))
    }

    /// Returns the forms that an operand may have: a register, memory, or an element in memory.
    pub fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        let may = |f: fn(&Kind) -> bool| self.operands.iter().any(f);
        if !may(|k| matches!(k, Kind::Vector(None, ..) | Kind::Gather(_))) {
            choices.push(Choice::Register);
        }
        if may(|k| {
            matches!(
                k,
                Kind::Vector(_, Some(_), _) | Kind::Gather(_) | Kind::Gpr(_, Some(_))
            )
        }) {
            choices.push(Choice::Memory);
        }
        if may(|k| matches!(k, Kind::Vector(_, _, Some(_)))) {
            choices.push(Choice::Broadcast);
        }
        choices
    }

    /// Returns the number of bytes in memory of the operand that may be there.
    pub fn memory_bytes(&self, choice: Choice) -> usize {
        let bytes = |k: &Kind| match (*k, choice) {
            (Kind::Vector(_, _, Some(n)), Choice::Broadcast) => Some(n),
            (Kind::Vector(_, Some(n), _), Choice::Memory) => Some(n),
            (Kind::Gpr(_, Some(n)), Choice::Memory) => Some(n),
            (Kind::Gather(_), _) => Some(8),
            _ => None,
        };
        self.operands.iter().find_map(bytes).unwrap_or(0)
    }

    /// Returns random operands, with the given memory.
    pub fn operands(&self, choice: Choice, rng: &mut Rng, gprs: &[Gpr], m: Mem) -> Vec<Operand> {
        let registers = if self.evex { 32 } else { 16 };
        // The registers of a gather must differ.
        let first = rng.u8(..registers);
        let register = |i: usize, rng: &mut Rng| match self.gathers() {
            true => self.next(first, i),
            false => Vreg(rng.u8(..registers)),
        };
        let operand = |(i, kind): (usize, &Kind)| match (*kind, choice) {
            (Kind::Vector(_, _, Some(_)), Choice::Broadcast) => m.broadcast(),
            (Kind::Vector(_, Some(_), _) | Kind::Gpr(_, Some(_)), Choice::Memory) => m.into(),
            (Kind::Vector(..), _) => register(i, rng).into(),
            (Kind::Gather(bytes), _) => {
                let width = [Width::X, Width::Y, Width::Z][bytes / 32];
                m.gather(register(i, rng), width, 1 << rng.u8(..4)).into()
            }
            (Kind::Mask, _) => Mask(rng.u8(..8)).into(),
            (Kind::Gpr(..), _) => gprs[rng.usize(..gprs.len())].into(),
            (Kind::Immediate, _) => rng.u8(..).into(),
        };
        self.operands.iter().enumerate().map(operand).collect()
    }

    fn next(&self, first: u8, i: usize) -> Vreg {
        let registers = if self.evex { 32 } else { 16 };
        Vreg((first + 5 * i as u8) % registers)
    }

    /// Returns the vector that holds the addresses of a gather, given its destination.
    #[allow(dead_code)] // not all that share this file need it
    pub fn index(&self, to: Vreg) -> Vreg {
        self.next(to.0, 1)
    }

    /// Returns a mask that the encoding takes, or none.
    pub fn mask(&self, choice: Choice, rng: &mut Rng) -> Option<(Mask, bool)> {
        let stores =
            matches!(self.operands[0], Kind::Vector(_, Some(_), _)) && choice == Choice::Memory;
        let wants = self.evex && self.masks && (self.gathers() || rng.bool());
        let clears = self.clears && !stores && rng.bool();
        wants.then(|| (Mask(rng.u8(1..8)), clears))
    }
}

/// The form of the operand that may be in memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Register,
    Memory,
    Broadcast,
}

/// A list of operands.
pub struct List(pub Vec<Operand>);

impl Operands for List {
    fn list(self) -> ([Operand; 4], usize) {
        let mut list = [Operand::Immediate(0); 4];
        list[..self.0.len()].copy_from_slice(&self.0);
        (list, self.0.len())
    }
}

/// Returns the operand that a field of a name denotes: `zmmm512b32` is a register of 512 bits, or 512 bits in memory,
/// or 32 bits in memory that are broadcast.
fn kind(field: &str) -> Option<Kind> {
    let number = |text: &str| text.parse::<usize>().ok().map(|bits| bits / 8);
    let memory = |text: &str| match text.split_once('b') {
        Some((all, one)) => (number(all), number(one)),
        None => (number(text), None),
    };
    let register = match field.get(..3) {
        Some("xmm") => Some(16),
        Some("ymm") => Some(32),
        Some("zmm") => Some(64),
        _ => None,
    };
    Some(match field {
        "kr" => Kind::Mask,
        "imm8" => Kind::Immediate,
        "r32" => Kind::Gpr(4, None),
        "r64" => Kind::Gpr(8, None),
        "rm32" => Kind::Gpr(4, Some(4)),
        "rm64" => Kind::Gpr(8, Some(8)),
        "r32m8" => Kind::Gpr(4, Some(1)),
        "r32m16" => Kind::Gpr(4, Some(2)),
        "vm32x" | "vm64x" => Kind::Gather(16),
        "vm32y" | "vm64y" => Kind::Gather(32),
        "vm32z" | "vm64z" => Kind::Gather(64),
        _ if register.is_some() => {
            let (all, one) = match &field[3..] {
                "" => (None, None),
                rest => memory(rest.strip_prefix('m')?),
            };
            Kind::Vector(register, all, one)
        }
        _ => match field.strip_prefix('m').map(memory) {
            Some((Some(all), one)) => Kind::Vector(None, Some(all), one),
            _ => return None,
        },
    })
}
