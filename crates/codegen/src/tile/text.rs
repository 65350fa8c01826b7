//! The text of a tile program.

use crate::kir::{access_text, affine_text};
use kiln_base::Dim;
use kiln_plan::tile::{Inst, Reg, SerialPoints, TileProgram};
use std::fmt::Write;

/// Returns a tile program as readable text, for `explain` and for tests.
///
/// `a` counts the parallel axes and `i` the inner ones. A register is written as its type's first letter and its
/// number.
pub fn tile_text(p: &TileProgram) -> String {
    let mut out = String::new();
    let list = |dims: &[Dim]| {
        let dims: Vec<String> = dims.iter().map(Dim::to_string).collect();
        dims.join(", ")
    };
    let printer = Printer { p };
    let (axes, serial) = p.axes.split_at(p.axes.len() - usize::from(p.serial));
    let serial = match serial {
        [] => String::new(),
        serial => format!(" in order[{}]", list(serial)),
    };
    // Writing to a string never fails.
    let _ = writeln!(
        out,
        "tile {} axes[{}]{serial} inner[{}] {:?}, {} registers, {} slots {{",
        p.name,
        list(axes),
        list(&p.inner),
        p.schedule,
        p.registers.len(),
        p.slots.len()
    );
    for (r, s) in &p.constants {
        let _ = writeln!(out, "  const {} = {}", printer.reg(*r), s);
    }
    for stage in &p.stages {
        let frequency = if stage.over_inner {
            "over inner"
        } else {
            "once"
        };
        let points = match stage.serial_points {
            SerialPoints::Every => "",
            SerialPoints::First => ", first in order",
            SerialPoints::Last => ", last in order",
        };
        let _ = writeln!(out, "  {frequency}{points}:");
        for inst in &stage.code {
            let _ = writeln!(out, "    {}", printer.inst(inst));
        }
    }
    out + "}"
}

struct Printer<'a> {
    p: &'a TileProgram,
}

impl Printer<'_> {
    fn reg(&self, r: Reg) -> String {
        let name = self.p.registers[r.0 as usize].name();
        let letter = match name {
            "f64" => "d",
            "i64" => "l",
            name => &name[..1],
        };
        format!("{letter}{}", r.0)
    }

    fn access(&self, id: u16) -> String {
        access_text(&self.p.accesses[id as usize], self.p.axes.len(), "")
    }

    fn inst(&self, inst: &Inst) -> String {
        let r = |reg: &Reg| self.reg(*reg);
        match inst {
            Inst::Load { dst, access } => format!("{} = load {}", r(dst), self.access(*access)),
            Inst::LoadAt {
                dst,
                access,
                dynamic,
            } => {
                let mut text = format!("{} = load {}", r(dst), self.access(*access));
                for d in dynamic {
                    let (index, stride, extent) = (r(&d.index), &d.stride, &d.extent);
                    text += &format!(" + {stride}*({index} < {extent} at site {})", d.site);
                }
                text
            }
            Inst::Index {
                dst,
                offset,
                strides,
            } => format!(
                "{} = index {}",
                r(dst),
                affine_text(offset, strides, self.p.axes.len())
            ),
            Inst::Unary { op, dst, a } => format!("{} = {} {}", r(dst), op.name(), r(a)),
            Inst::Binary { op, dst, a, b, .. } => {
                format!("{} = {} {}, {}", r(dst), op.name(), r(a), r(b))
            }
            Inst::Select { dst, mask, a, b } => {
                format!("{} = select {}, {}, {}", r(dst), r(mask), r(a), r(b))
            }
            Inst::Convert { dst, a, from, to } => {
                format!("{} = convert {} from {from} to {to}", r(dst), r(a))
            }
            Inst::Random {
                dst,
                kind,
                seed,
                offset,
                index,
            } => format!(
                "{} = random {} {}, {}, {}",
                r(dst),
                kind.name(),
                r(seed),
                r(offset),
                r(index)
            ),
            Inst::Reduce { op, acc, a } => format!("{} {}= {}", r(acc), op.name(), r(a)),
            Inst::ArgReduce { op, acc, a } => format!("{} arg{}= {}", r(acc), op.name(), r(a)),
            Inst::Keep { slot, src } => format!("slot{slot} = {}", r(src)),
            Inst::Kept { dst, slot } => format!("{} = slot{slot}", r(dst)),
            Inst::Store { access, src } => {
                format!("store {} = {}", self.access(*access), r(src))
            }
        }
    }
}
