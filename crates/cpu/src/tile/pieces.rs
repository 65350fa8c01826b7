//! Splitting of programs whose masks compare an index with constants, as a concatenation's do. Each side of a constant
//! becomes a separate program without the comparison, which reads only the elements of its side.

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

/// Returns the pieces of a pointwise program whose masks compare an index with constants; the list is empty if there is
/// nothing to gain.
///
/// # Errors
/// If its sizes have no values.
pub(crate) fn split(program: &TileProgram, values: &[i64]) -> Result<Vec<TileProgram>> {
    let is_select = |inst: &Inst| matches!(inst, Inst::Select { .. });
    if !is_plain(program) || !program.stages[0].code.iter().any(is_select) {
        return Ok(Vec::new());
    }
    let extents: Vec<i64> = (program.axes.iter())
        .map(|axis| extent(axis, values))
        .collect::<Result<_>>()?;
    for (axis, len) in extents.iter().enumerate() {
        let mut splits = vec![0, *len];
        for bound in program.accesses.iter().flat_map(|a| &a.bounds) {
            if let Some((from, to)) = axis_range(bound, axis, (&extents, values))? {
                splits.extend([from, to].into_iter().filter(|i| (1..*len).contains(i)));
            }
        }
        splits.sort_unstable();
        splits.dedup();
        let count = splits.len() - 1;
        let points: i64 = extents.iter().product();
        if !(2..=MAX_PIECES).contains(&count) || points / (count as i64) < MIN_POINTS {
            continue;
        }
        let pieces = splits
            .windows(2)
            .map(|w| simplified_piece(program, axis, (w[0], w[1]), (&extents, values)));
        let pieces: Vec<Option<TileProgram>> = pieces.collect::<Result<_>>()?;
        // Splitting pays only if every piece loses a comparison.
        if let Some(pieces) = pieces.into_iter().collect() {
            return Ok(pieces);
        }
    }
    Ok(Vec::new())
}

/// True if the points of a program are independent.
pub(super) fn is_plain(program: &TileProgram) -> bool {
    let single = program.inner.is_empty() && program.serial == 0 && program.sites == 0;
    single && matches!(&program.stages[..], [stage] if !stage.over_inner)
}

/// An affine number as a function of one axis's index, where the other axes add less than one step.
struct Steps {
    offset: i64,
    /// The contribution of an index.
    step: i64,
    /// The maximum contribution of the other axes.
    high: i64,
}

impl Steps {
    fn new(
        axis: usize,
        offset: &Dim,
        strides: &[Dim],
        (axes, values): (&[i64], &[i64]),
    ) -> Result<Option<Steps>> {
        let offset = eval(offset, values)?;
        let (mut step, mut high) = (0, Some(0i64));
        for (d, (stride, len)) in strides.iter().zip(axes).enumerate() {
            let stride = eval(stride, values)?;
            if d == axis {
                step = stride;
            } else {
                let span = stride.checked_mul((len - 1).max(0));
                high = (high.zip(span))
                    .and_then(|(a, b)| a.checked_add(b))
                    .filter(|_| stride >= 0);
            }
        }
        let high = high.filter(|high| *high < step || (*high, step) == (0, 0));
        Ok(high.map(|high| Steps { offset, step, high }))
    }

    /// Returns the bounds of the indices whose numbers are in `0..end`.
    fn indices_below(&self, end: i64) -> Option<(i64, i64)> {
        let steps = |n: i64| (n.checked_rem(self.step) == Some(0)).then(|| n / self.step);
        let from = steps(self.offset)?.checked_neg()?;
        Some((from, from.checked_add(steps(end)?)?))
    }

    /// Returns the minimum and the maximum of the number over `count` indices.
    fn range(&self, count: i64) -> Option<(i64, i64)> {
        let span = (count - 1).checked_mul(self.step)?.checked_add(self.high)?;
        Some((self.offset, self.offset.checked_add(span)?))
    }
}

/// Returns the bounds of the indices of an axis for which a limit holds, if the limit depends on no other axis.
fn axis_range(bound: &Bound, axis: usize, space: (&[i64], &[i64])) -> Result<Option<(i64, i64)>> {
    let steps = Steps::new(axis, &bound.offset, &bound.strides, space)?;
    let end = extent(&bound.extent, space.1)?;
    Ok(steps.and_then(|steps| steps.indices_below(end)))
}

/// Returns the program restricted to the indices `from..to` of an axis.
pub(super) fn restrict(program: &TileProgram, axis: usize, (from, to): (i64, i64)) -> TileProgram {
    let mut restricted = program.clone();
    restricted.axes[axis] = Dim::from(to - from);
    let shift = |offset: &mut Dim, strides: &[Dim], from: i64| {
        *offset = &*offset + &(&strides[axis] * &Dim::from(from));
    };
    for a in &mut restricted.accesses {
        for bound in &mut a.bounds {
            shift(&mut bound.offset, &bound.strides, from);
        }
        let from = bug(
            "a piece of a concatenation begins with the first element",
            from,
            |_| 0,
        );
        shift(&mut a.offset, &a.strides, from);
    }
    for inst in &mut restricted.stages[0].code {
        if let Inst::Index {
            offset, strides, ..
        } = inst
        {
            shift(offset, strides, from);
        }
    }
    restricted
}

/// Returns the program restricted to the indices `from..to` of an axis, without the limits and selects that hold there
/// throughout. Returns `None` if no select is decided.
fn simplified_piece(
    program: &TileProgram,
    axis: usize,
    (from, to): (i64, i64),
    space: (&[i64], &[i64]),
) -> Result<Option<TileProgram>> {
    let mut piece = restrict(program, axis, (from, to));
    for Access { bounds, .. } in &mut piece.accesses {
        let mut kept = Vec::new();
        for bound in bounds.drain(..) {
            let holds = |(low, high): (i64, i64)| low <= 0 && to - from <= high;
            if !axis_range(&bound, axis, space)?.is_some_and(holds) {
                kept.push(bound);
            }
        }
        *bounds = kept;
    }
    // Facts about registers: ranges, truth values, and the register that each one equals.
    let mut ranges: HashMap<Reg, (i64, i64)> = HashMap::new();
    let mut truths: HashMap<Reg, bool> = HashMap::new();
    let mut equal_to: HashMap<Reg, Reg> = HashMap::new();
    for (r, value) in &program.constants {
        if let Scalar::Int(n) = value {
            ranges.insert(*r, (*n, *n));
        }
    }
    let (mut code, mut changed) = (Vec::new(), false);
    for mut inst in piece.stages[0].code.drain(..) {
        replace_reads(&mut inst, &equal_to);
        let selected = match inst {
            Inst::Select { mask, a, b, .. } => {
                truths.get(&mask).map(|yes| if *yes { a } else { b })
            }
            _ => None,
        };
        let (_, dst) = inst.operands();
        if selected.is_some() && selected == dst {
            changed = true;
            continue;
        }
        if let Some(r) = dst {
            if equal_to.values().any(|source| *source == r) {
                return Ok(None);
            }
            ranges.remove(&r);
            truths.remove(&r);
            equal_to.remove(&r);
        }
        match &mut inst {
            Inst::Index {
                dst,
                offset,
                strides,
            } => {
                let steps = Steps::new(axis, offset, strides, space)?;
                if let Some(range) = steps.and_then(|s| s.range(to - from)) {
                    ranges.insert(*dst, range);
                }
            }
            Inst::Binary { op, dst, a, b, .. } => {
                let sides = ranges.get(a).zip(ranges.get(b));
                truths.extend(
                    sides
                        .and_then(|(a, b)| evaluate_comparison(*op, *a, *b))
                        .map(|t| (*dst, t)),
                );
            }
            Inst::Select { dst, .. } => {
                if let Some(selected) = selected {
                    equal_to.insert(*dst, selected);
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
    piece.stages[0].code = eliminate_dead_code(code);
    Ok(Some(piece))
}

/// Evaluates a comparison of numbers in these ranges; `None` if the ranges don't decide it.
fn evaluate_comparison(op: Binary, a: (i64, i64), b: (i64, i64)) -> Option<bool> {
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

/// Replaces each register that an instruction reads with the one that it equals.
fn replace_reads(inst: &mut Inst, equal_to: &HashMap<Reg, Reg>) {
    let replace = |r: &mut Reg| *r = *equal_to.get(r).unwrap_or(r);
    match inst {
        Inst::Unary { a, .. } | Inst::Convert { a, .. } => replace(a),
        Inst::Binary { a, b, .. } => [a, b].into_iter().for_each(replace),
        Inst::Select { mask, a, b, .. } => [mask, a, b].into_iter().for_each(replace),
        Inst::Random {
            seed,
            offset,
            index,
            ..
        } => [seed, offset, index].into_iter().for_each(replace),
        Inst::Reduce { a, .. } | Inst::ArgReduce { a, .. } => replace(a),
        Inst::Keep { src, .. } | Inst::Store { src, .. } => replace(src),
        Inst::LoadAt { dynamic, .. } => dynamic.iter_mut().for_each(|d| replace(&mut d.index)),
        Inst::Load { .. } | Inst::Index { .. } | Inst::Kept { .. } => {}
    }
}

/// Returns the instructions whose results are used.
fn eliminate_dead_code(code: Vec<Inst>) -> Vec<Inst> {
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
        let total: i64 = parts.iter().sum();
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
        let mut start = 0;
        let mut chosen: Option<Reg> = None;
        let mut limits = vec![];
        for (i, len) in parts.iter().enumerate() {
            let bound = Bound {
                offset: Dim::from(-start),
                strides: dims(&[0, 1, 0]),
                extent: Dim::from(*len),
            };
            accesses.push(access(i as u16, -start * inner, *len, vec![bound]));
            code.push(Inst::Load {
                dst: Reg(i as u16),
                access: i as u16,
            });
            start += len;
            limits.push(start);
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
        accesses.push(access(count, 0, total, vec![]));
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
            axes: dims(&[outer, total, inner]),
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

    /// Returns the program with its middle axis split by a factor, and the selected value in the register of the first
    /// part.
    fn shared(mut program: TileProgram, by: i64) -> TileProgram {
        let split2 = |list: &mut Vec<Dim>| {
            let step = list[1].clone();
            list.splice(1..2, [&step * &Dim::from(by), step]);
        };
        for access in &mut program.accesses {
            split2(&mut access.strides);
            access
                .bounds
                .iter_mut()
                .for_each(|b| split2(&mut b.strides));
        }
        let len = program.axes[1].as_const().unwrap();
        program.axes.splice(1..2, [len / by, by].map(Dim::from));
        let code = &mut program.stages[0].code;
        let last = code.iter().rev().find_map(|inst| match inst {
            Inst::Select { dst, .. } => Some(*dst),
            _ => None,
        });
        for inst in code {
            match inst {
                Inst::Index { strides, .. } => split2(strides),
                Inst::Select { dst, .. } if Some(*dst) == last => *dst = Reg(0),
                Inst::Binary { a, .. } if Some(*a) == last => *a = Reg(0),
                _ => {}
            }
        }
        program
    }

    /// Returns the result of a program on its operands.
    fn run(program: &TileProgram, is_split: bool, operands: &[Vec<f32>], len: usize) -> Vec<f32> {
        let lens = operands.iter().map(|x| x.len() as i64).chain([len as i64]);
        let lens: Vec<i64> = lens.collect();
        let level = Features::current().unwrap();
        let bound = |p: &TileProgram| link(&bind(p, &[], &lens).unwrap(), level).unwrap();
        let mut linked = bound(program);
        if is_split {
            linked.pieces = split(program, &[]).unwrap().iter().map(bound).collect();
            assert!(!linked.pieces.is_empty());
            assert!(
                linked
                    .pieces
                    .iter()
                    .all(|p| p.walks.iter().all(|w| w.limits.is_empty()))
            );
        }
        let mut memory = operands.to_vec();
        memory.push(vec![0f32; len]);
        run_on(&linked, &mut memory, true, &Failures::default());
        memory.pop().unwrap()
    }

    #[test]
    fn pieces_of_a_concatenation_compute_the_same() {
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
            let mut expected = vec![];
            for o in 0..outer {
                for (x, len) in operands.iter().zip(parts) {
                    let row = (len * inner) as usize;
                    expected.extend(x[o as usize * row..][..row].iter().map(|v| v + 1.0));
                }
            }
            // The factors that divide every part.
            let step = [64, 16, 3]
                .into_iter()
                .find(|by| parts.iter().all(|n| n % by == 0));
            let shared_axis = step.map(|by| shared(program.clone(), by));
            for program in [program].iter().chain(&shared_axis) {
                for is_split in [false, true] {
                    let actual = run(program, is_split, &operands, expected.len());
                    assert!(
                        actual == expected,
                        "{parts:?} of {outer} and {inner}, {is_split}"
                    );
                }
            }
        }
    }

    #[test]
    fn small_programs_and_programs_without_selects_are_not_split() {
        assert!(split(&concat(2, &[3, 4], 5), &[]).unwrap().is_empty());
        assert!(split(&concat(2, &[9000], 5), &[]).unwrap().is_empty());
    }
}
