//! Programs over a space that splits into pieces, as a concatenation's does. Where a program tests on which side of a
//! limit an index is, each side becomes a separate program. It needs no test, and reads only the elements of its side.

use hashbrown::{HashMap, HashSet};
use kiln_base::prim::Binary;
use kiln_base::{Dim, Scalar};
use kiln_kernel::affine::{eval, extent};
use kiln_kernel::bugs::bug;
use kiln_kernel::error::Result;
use kiln_plan::tile::{Access, Bound, Inst, Reg, TileProgram};

/// The maximum number of pieces: each is a program with its own code.
const MAX_PIECES: usize = 32;
/// The minimum average number of points of a piece.
const MIN_POINTS: i64 = 1 << 10;

/// Returns the pieces of a pointwise program whose masks test on which side of limits its points are.
///
/// # Errors
/// If its sizes have no values.
pub(crate) fn pieces(program: &TileProgram, values: &[i64]) -> Result<Vec<TileProgram>> {
    let asks = |inst: &Inst| matches!(inst, Inst::Select { .. });
    if !is_plain(program) || !program.stages[0].code.iter().any(asks) {
        return Ok(Vec::new());
    }
    let extents: Vec<i64> = (program.axes.iter())
        .map(|axis| extent(axis, values))
        .collect::<Result<_>>()?;
    for (axis, len) in extents.iter().enumerate() {
        let mut cuts = vec![0, *len];
        for bound in program.accesses.iter().flat_map(|a| &a.bounds) {
            if let Some((from, to)) = along(bound, axis, (&extents, values))? {
                cuts.extend([from, to].into_iter().filter(|at| (1..*len).contains(at)));
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        let count = cuts.len() - 1;
        let points: i64 = extents.iter().product();
        if !(2..=MAX_PIECES).contains(&count) || points / (count as i64) < MIN_POINTS {
            continue;
        }
        let all = cuts
            .windows(2)
            .map(|w| piece(program, axis, (w[0], w[1]), (&extents, values)));
        let all: Vec<Option<TileProgram>> = all.collect::<Result<_>>()?;
        // Each piece must have lost a test.
        if let Some(all) = all.into_iter().collect() {
            return Ok(all);
        }
    }
    Ok(Vec::new())
}

/// True if the points of a program are independent.
pub(super) fn is_plain(program: &TileProgram) -> bool {
    let single = program.inner.is_empty() && program.serial == 0 && program.sites == 0;
    single && matches!(&program.stages[..], [stage] if !stage.over_inner)
}

/// The steps of a number along one axis, where the other axes add less than one step.
struct Steps {
    offset: i64,
    /// The contribution of an index.
    step: i64,
    /// The maximum that the other axes add.
    most: i64,
}

impl Steps {
    fn along(
        axis: usize,
        offset: &Dim,
        strides: &[Dim],
        (axes, values): (&[i64], &[i64]),
    ) -> Result<Option<Steps>> {
        let offset = eval(offset, values)?;
        let (mut step, mut most) = (0, Some(0i64));
        for (d, (stride, len)) in strides.iter().zip(axes).enumerate() {
            let stride = eval(stride, values)?;
            if d == axis {
                step = stride;
            } else {
                let far = stride.checked_mul((len - 1).max(0));
                most = (most.zip(far))
                    .and_then(|(a, b)| a.checked_add(b))
                    .filter(|_| stride >= 0);
            }
        }
        let most = most.filter(|most| *most < step || (*most, step) == (0, 0));
        Ok(most.map(|most| Steps { offset, step, most }))
    }

    /// Returns the bounds of the indices for which a limit to numbers below `end` holds.
    fn within(&self, end: i64) -> Option<(i64, i64)> {
        let steps = |n: i64| (n.checked_rem(self.step) == Some(0)).then(|| n / self.step);
        let from = steps(self.offset)?.checked_neg()?;
        Some((from, from.checked_add(steps(end)?)?))
    }

    /// Returns the smallest and the largest number of `count` indices.
    fn range(&self, count: i64) -> Option<(i64, i64)> {
        let far = (count - 1).checked_mul(self.step)?.checked_add(self.most)?;
        Some((self.offset, self.offset.checked_add(far)?))
    }
}

/// Returns the bounds of an axis's indices for which a limit holds, if it tests no other axis.
fn along(bound: &Bound, axis: usize, space: (&[i64], &[i64])) -> Result<Option<(i64, i64)>> {
    let steps = Steps::along(axis, &bound.offset, &bound.strides, space)?;
    let end = extent(&bound.extent, space.1)?;
    Ok(steps.and_then(|steps| steps.within(end)))
}

/// Returns the program for the indices `from..to` of an axis alone.
pub(super) fn part(program: &TileProgram, axis: usize, (from, to): (i64, i64)) -> TileProgram {
    let mut part = program.clone();
    part.axes[axis] = Dim::from(to - from);
    let moved = |offset: &mut Dim, strides: &[Dim], from: i64| {
        *offset = &*offset + &(&strides[axis] * &Dim::from(from));
    };
    for a in &mut part.accesses {
        for bound in &mut a.bounds {
            moved(&mut bound.offset, &bound.strides, from);
        }
        let from = bug(
            "a piece of a concatenation begins with the first element",
            from,
            |_| 0,
        );
        moved(&mut a.offset, &a.strides, from);
    }
    for inst in &mut part.stages[0].code {
        if let Inst::Index {
            offset, strides, ..
        } = inst
        {
            moved(offset, strides, from);
        }
    }
    part
}

/// Returns the program for the indices `from..to` of an axis alone, or `None` if no choice is decided there.
fn piece(
    program: &TileProgram,
    axis: usize,
    (from, to): (i64, i64),
    space: (&[i64], &[i64]),
) -> Result<Option<TileProgram>> {
    let mut piece = part(program, axis, (from, to));
    for Access { bounds, .. } in &mut piece.accesses {
        let mut kept = Vec::new();
        for bound in bounds.drain(..) {
            let holds = |(low, high): (i64, i64)| low <= 0 && to - from <= high;
            if !along(&bound, axis, space)?.is_some_and(holds) {
                kept.push(bound);
            }
        }
        *bounds = kept;
    }
    // The known facts about registers: ranges, truth values, and equality with another register.
    let mut ranges: HashMap<Reg, (i64, i64)> = HashMap::new();
    let mut truths: HashMap<Reg, bool> = HashMap::new();
    let mut same: HashMap<Reg, Reg> = HashMap::new();
    for (r, value) in &program.constants {
        if let Scalar::Int(n) = value {
            ranges.insert(*r, (*n, *n));
        }
    }
    let (mut code, mut changed) = (Vec::new(), false);
    for mut inst in piece.stages[0].code.drain(..) {
        rename(&mut inst, &same);
        let chosen = match inst {
            Inst::Select { mask, a, b, .. } => truths.get(&mask).map(|is| if *is { a } else { b }),
            _ => None,
        };
        let (_, to_reg) = inst.operands();
        if chosen.is_some() && chosen == to_reg {
            changed = true;
            continue;
        }
        if let Some(r) = to_reg {
            if same.values().any(|of| *of == r) {
                return Ok(None);
            }
            ranges.remove(&r);
            truths.remove(&r);
            same.remove(&r);
        }
        match &mut inst {
            Inst::Index {
                dst,
                offset,
                strides,
            } => {
                let steps = Steps::along(axis, offset, strides, space)?;
                if let Some(range) = steps.and_then(|s| s.range(to - from)) {
                    ranges.insert(*dst, range);
                }
            }
            Inst::Binary { op, dst, a, b, .. } => {
                let sides = ranges.get(a).zip(ranges.get(b));
                truths.extend(
                    sides
                        .and_then(|(a, b)| truth(*op, *a, *b))
                        .map(|t| (*dst, t)),
                );
            }
            Inst::Select { dst, .. } => {
                if let Some(chosen) = chosen {
                    same.insert(*dst, chosen);
                    changed = true;
                    continue;
                }
            }
            _ => {}
        }
        code.push(inst);
    }
    if !changed {
        return Ok(None);
    }
    piece.stages[0].code = wanted(code);
    Ok(Some(piece))
}

/// Returns true if a comparison holds for all numbers in these ranges, false if for none, and otherwise `None`.
fn truth(op: Binary, a: (i64, i64), b: (i64, i64)) -> Option<bool> {
    let less = |a: (i64, i64), b: (i64, i64)| match () {
        () if a.1 < b.0 => Some(true),
        () if a.0 >= b.1 => Some(false),
        () => None,
    };
    match op {
        Binary::Lt => less(a, b),
        Binary::Gt => less(b, a),
        Binary::Ge => less(a, b).map(|t| !t),
        Binary::Le => less(b, a).map(|t| !t),
        _ => None,
    }
}

/// Replaces the registers that an instruction reads by equal ones.
fn rename(inst: &mut Inst, same: &HashMap<Reg, Reg>) {
    let of = |r: &mut Reg| *r = *same.get(r).unwrap_or(r);
    match inst {
        Inst::Unary { a, .. } | Inst::Convert { a, .. } => of(a),
        Inst::Binary { a, b, .. } => [a, b].into_iter().for_each(of),
        Inst::Select { mask, a, b, .. } => [mask, a, b].into_iter().for_each(of),
        Inst::Random {
            seed,
            offset,
            index,
            ..
        } => [seed, offset, index].into_iter().for_each(of),
        Inst::Reduce { a, .. } | Inst::ArgReduce { a, .. } => of(a),
        Inst::Keep { src, .. } | Inst::Store { src, .. } => of(src),
        Inst::LoadAt { dynamic, .. } => dynamic.iter_mut().for_each(|d| of(&mut d.index)),
        Inst::Load { .. } | Inst::Index { .. } | Inst::Kept { .. } => {}
    }
}

/// Returns the instructions that have a use.
fn wanted(code: Vec<Inst>) -> Vec<Inst> {
    let mut live: HashSet<Reg> = HashSet::new();
    let mut kept = Vec::new();
    for inst in code.into_iter().rev() {
        let (reads, writes) = inst.operands();
        if writes.is_none_or(|r| live.remove(&r)) {
            live.extend(reads);
            kept.push(inst);
        }
    }
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::run::run_on;
    use crate::tile::{bind, link};
    use kiln_base::{Compute, DType};
    use kiln_kernel::failures::Failures;
    use kiln_kernel::simd::Features;
    use kiln_plan::tile::{Arg, Stage};

    /// Returns the concatenation of arrays of these extents along the middle of three axes, with 1 added.
    fn concat(outer: i64, parts: &[i64], inner: i64) -> TileProgram {
        let all: i64 = parts.iter().sum();
        let dims = |list: &[i64]| list.iter().map(|n| Dim::from(*n)).collect::<Vec<_>>();
        let f32 = |written| Arg {
            dtype: DType::F32,
            written,
        };
        let count = parts.len() as u16;
        let access = |arg: u16, offset: i64, len: i64, bounds| Access {
            arg,
            offset: Dim::from(offset),
            strides: dims(&[len * inner, inner, 1]),
            bounds,
            fill: Scalar::Float(0.0),
        };
        // Registers: the parts, an index, a mask and limits for all but the last, the selected value, one, and the sum.
        let mut registers = vec![Compute::F32; parts.len()];
        let (mut accesses, mut code, mut constants) = (vec![], vec![], vec![]);
        let mut add = |ty: Compute| {
            registers.push(ty);
            Reg(registers.len() as u16 - 1)
        };
        let index = add(Compute::I64);
        code.push(Inst::Index {
            dst: index,
            offset: Dim::from(0),
            strides: dims(&[0, 1, 0]),
        });
        let mut first = 0;
        let mut chosen: Option<Reg> = None;
        let mut limits = vec![];
        for (i, len) in parts.iter().enumerate() {
            let bound = Bound {
                offset: Dim::from(-first),
                strides: dims(&[0, 1, 0]),
                extent: Dim::from(*len),
            };
            accesses.push(access(i as u16, -first * inner, *len, vec![bound]));
            code.push(Inst::Load {
                dst: Reg(i as u16),
                access: i as u16,
            });
            first += len;
            limits.push(first);
        }
        for (i, limit) in limits.iter().enumerate().rev() {
            let part = Reg(i as u16);
            chosen = Some(match chosen {
                None => part,
                Some(b) => {
                    let (number, mask, dst) =
                        (add(Compute::I64), add(Compute::Mask), add(Compute::F32));
                    constants.push((number, Scalar::Int(*limit)));
                    code.push(Inst::Binary {
                        op: Binary::Lt,
                        dst: mask,
                        a: index,
                        b: number,
                        site: 0,
                    });
                    code.push(Inst::Select {
                        dst,
                        mask,
                        a: part,
                        b,
                    });
                    dst
                }
            });
        }
        let (one, sum) = (add(Compute::F32), add(Compute::F32));
        constants.push((one, Scalar::Float(1.0)));
        code.push(Inst::Binary {
            op: Binary::Add,
            dst: sum,
            a: chosen.unwrap(),
            b: one,
            site: 0,
        });
        accesses.push(access(count, 0, all, vec![]));
        code.push(Inst::Store {
            access: count,
            src: sum,
        });
        let args = parts
            .iter()
            .map(|_| f32(false))
            .chain([f32(true)])
            .collect();
        TileProgram {
            axes: dims(&[outer, all, inner]),
            args,
            accesses,
            registers,
            constants,
            stages: vec![Stage {
                code,
                ..Stage::default()
            }],
            ..TileProgram::default()
        }
    }

    /// Returns the program with its middle axis split in two, and the selected value in the register of the first part.
    fn shared(mut program: TileProgram, by: i64) -> TileProgram {
        let two = |list: &mut Vec<Dim>| {
            let step = list[1].clone();
            list.splice(1..2, [&step * &Dim::from(by), step]);
        };
        for access in &mut program.accesses {
            two(&mut access.strides);
            access.bounds.iter_mut().for_each(|b| two(&mut b.strides));
        }
        let all = program.axes[1].as_const().unwrap();
        program.axes.splice(1..2, [all / by, by].map(Dim::from));
        let code = &mut program.stages[0].code;
        let last = code.iter().rev().find_map(|inst| match inst {
            Inst::Select { dst, .. } => Some(*dst),
            _ => None,
        });
        for inst in code {
            match inst {
                Inst::Index { strides, .. } => two(strides),
                Inst::Select { dst, .. } if Some(*dst) == last => *dst = Reg(0),
                Inst::Binary { a, .. } if Some(*a) == last => *a = Reg(0),
                _ => {}
            }
        }
        program
    }

    /// Returns the result of a program on its operands.
    fn run(program: &TileProgram, cut: bool, operands: &[Vec<f32>], len: usize) -> Vec<f32> {
        let lens = operands.iter().map(|x| x.len() as i64).chain([len as i64]);
        let lens: Vec<i64> = lens.collect();
        let level = Features::current().unwrap();
        let linked = |p: &TileProgram| link(&bind(p, &[], &lens).unwrap(), level).unwrap();
        let mut whole = linked(program);
        if cut {
            whole.pieces = pieces(program, &[]).unwrap().iter().map(linked).collect();
            assert!(!whole.pieces.is_empty());
            assert!(
                whole
                    .pieces
                    .iter()
                    .all(|p| p.walks.iter().all(|w| w.limits.is_empty()))
            );
        }
        let mut memory = operands.to_vec();
        memory.push(vec![0f32; len]);
        run_on(&whole, &mut memory, true, &Failures::default());
        memory.pop().unwrap()
    }

    #[test]
    fn pieces_of_a_concatenation_are_the_whole() {
        let cases: [(i64, &[i64], i64); 8] = [
            (8, &[64, 128, 64], 16),
            (5, &[33, 63, 9], 11),
            (3, &[255, 1], 64),
            (1, &[700, 2801, 1023], 1),
            (2, &[31, 1, 64, 17], 37),
            (17, &[16, 16], 33),
            (1, &[5, 9000], 1),
            (4, &[1, 1], 1021),
        ];
        for (outer, parts, inner) in cases {
            let program = concat(outer, parts, inner);
            let numbers = |i: usize, len: i64| {
                let len = outer * len * inner;
                (0..len)
                    .map(|k| (1000 * k + i as i64) as f32)
                    .collect::<Vec<f32>>()
            };
            let operands: Vec<Vec<f32>> = parts
                .iter()
                .enumerate()
                .map(|(i, len)| numbers(i, *len))
                .collect();
            let mut wanted = vec![];
            for o in 0..outer {
                for (x, len) in operands.iter().zip(parts) {
                    let row = (len * inner) as usize;
                    wanted.extend(x[o as usize * row..][..row].iter().map(|v| v + 1.0));
                }
            }
            // Axes that parts share have whole steps of the first in each part.
            let step = [64, 16, 3]
                .into_iter()
                .find(|by| parts.iter().all(|n| n % by == 0));
            let two = step.map(|by| shared(program.clone(), by));
            for program in [program].iter().chain(&two) {
                for cut in [false, true] {
                    let found = run(program, cut, &operands, wanted.len());
                    assert!(found == wanted, "{parts:?} of {outer} and {inner}, {cut}");
                }
            }
        }
    }

    #[test]
    fn small_spaces_and_programs_without_choices_stay_whole() {
        assert!(pieces(&concat(2, &[3, 4], 5), &[]).unwrap().is_empty());
        assert!(pieces(&concat(2, &[9000], 5), &[]).unwrap().is_empty());
    }
}
