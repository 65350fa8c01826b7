//! Programs over rows, with and without limits.

use super::*;

/// Returns a random program over rows: reductions, code on their results once per row, and code on both in each lane.
pub(super) fn rows(r: &mut Random) -> Case {
    let (outer, lane) = (1 + r.below(3) as i64, r.one_of(&SIZES));
    let loads: Vec<DType> = (0..1 + r.below(2)).map(|_| r.one_of(&DTYPES)).collect();
    let mut registers: Vec<Compute> = loads.iter().map(|d| d.compute()).collect();
    let load = |registers: &mut Vec<Compute>, i: usize| {
        registers.push(loads[i].compute());
        Inst::Load {
            dst: Reg(registers.len() as u16 - 1),
            access: i as u16,
        }
    };
    let mut reduce: Vec<Inst> = (0..loads.len())
        .map(|i| Inst::Load {
            dst: Reg(i as u16),
            access: i as u16,
        })
        .collect();
    let steps = r.below(8);
    reduce.extend(random_code(r, &mut registers, 0, steps));
    let mut accumulators = vec![];
    for _ in 0..1 + r.below(3) {
        let a = Reg(r.below(registers.len()) as u16);
        let ty = registers[usize::from(a.0)];
        let op = r.one_of(Reduction::ALL);
        if ty == Compute::Mask && op == Reduction::Sum {
            continue;
        }
        accumulators.push((op, a));
    }
    let mut reduced = vec![];
    for (op, a) in accumulators {
        let acc = Reg(registers.len() as u16);
        registers.push(registers[usize::from(a.0)]);
        reduce.push(Inst::Reduce { op, acc, a });
        reduced.push(acc);
    }
    let src = Reg(r.below(loads.len()) as u16);
    let slots = vec![registers[usize::from(src.0)]];
    reduce.push(Inst::Keep { slot: 0, src });
    let row_registers = registers.len();
    registers.extend(
        reduced
            .iter()
            .map(|r| registers[usize::from(r.0)])
            .collect::<Vec<_>>(),
    );
    let mut row: Vec<Inst> = reduced
        .iter()
        .enumerate()
        .map(|(i, r)| {
            let (dst, a) = (Reg((row_registers + i) as u16), *r);
            let dtype = dtype_of(registers[usize::from(r.0)]);
            Inst::Convert {
                dst,
                a,
                from: dtype,
                to: dtype,
            }
        })
        .collect();
    if !reduced.is_empty() {
        let steps = r.below(4);
        row.extend(random_code(r, &mut registers, row_registers, steps));
    }
    // A register that the first stage uses too may hold a row's value afterwards.
    if let (Some(Inst::Convert { dst, a, .. }), true) = (row.first(), r.below(2) == 0) {
        let (dst, a) = (*dst, *a);
        let ty = registers[usize::from(dst.0)];
        let free = (0..loads.len()).find(|i| {
            let r = Reg(*i as u16);
            registers[*i] == ty && r != a
        });
        if let Some(name) = free {
            row.push(Inst::Convert {
                dst: Reg(name as u16),
                a: dst,
                from: dtype_of(ty),
                to: dtype_of(ty),
            });
        }
    }
    let mut lanes = vec![load(&mut registers, 0)];
    registers.push(slots[0]);
    lanes.push(Inst::Kept {
        slot: 0,
        dst: Reg(registers.len() as u16 - 1),
    });
    // Row values, and newly loaded elements.
    let steps = 1 + r.below(6);
    lanes.extend(random_code(r, &mut registers, row_registers, steps));
    // A value that the middle stage may have left in a name of the first stage.
    if let Some(Inst::Convert { dst, to, .. }) = row.last()
        && usize::from(dst.0) < loads.len()
        && row.len() > 1
    {
        registers.push(to.compute());
        lanes.push(Inst::Convert {
            dst: Reg(registers.len() as u16 - 1),
            a: *dst,
            from: *to,
            to: *to,
        });
    }
    let results: Vec<(Reg, DType)> = (1..3)
        .map(|i| (Reg((registers.len() - i) as u16), r.one_of(&DTYPES)))
        .collect();
    let mut args: Vec<Arg> = loads
        .iter()
        .map(|d| Arg {
            dtype: *d,
            written: false,
        })
        .collect();
    for (i, (src, dtype)) in results.iter().enumerate() {
        args.push(Arg {
            dtype: *dtype,
            written: true,
        });
        lanes.push(Inst::Store {
            access: (loads.len() + i) as u16,
            src: *src,
        });
    }
    let accesses: Vec<Access> = (0..args.len() as u16)
        .map(|a| access(a, 0, &[lane, 1]))
        .collect();
    Case {
        lens: vec![outer * lane; args.len()],
        program: TileProgram {
            axes: vec![outer.into()],
            inner: vec![lane.into()],
            schedule: Schedule::Rows,
            args,
            accesses,
            registers,
            slots,
            stages: vec![stage(true, reduce), stage(false, row), stage(true, lanes)],
            sites: 1,
            ..TileProgram::default()
        },
    }
}

#[test]
fn random_rows() {
    let mut emitted = 0;
    for seed in 0..SEEDS {
        let mut r = Random(seed * 1033 + 7);
        let case = rows(&mut r);
        emitted += compare(&case, &format!("rows {seed}"), &mut r);
    }
    assert!(emitted > SEEDS as usize, "{emitted} functions");
}

/// Returns a program that reduces rows, of which limits exclude all or a part, and combines them with values that are
/// uniform in a row.
fn padded_rows(dtype: DType, lane: i64, r: &mut Random) -> Case {
    let outer = 1 + r.below(5) as i64;
    let (low, shift) = (r.below(3) as i64 - 1, r.below(9) as i64 - 4);
    let limit = |offset: i64, strides: [i64; 2], extent: i64| Bound {
        offset: offset.into(),
        strides: strides.into_iter().map(|s| s.into()).collect(),
        extent: extent.into(),
    };
    let limited_access = |arg: u16, offset: i64, strides: [i64; 2], bounds: Vec<Bound>| Access {
        bounds,
        fill: Scalar::Int(1),
        ..access(arg, offset, &strides)
    };
    let row_limit = limit(-low, [1, 0], outer - 1);
    let mut limits = vec![row_limit.clone()];
    if r.below(2) == 0 {
        limits.push(limit(shift, [0, 1], lane));
    } else {
        limits.push(limit(lane + shift, [0, -1], lane));
    }
    let accesses = vec![
        limited_access(0, -low * lane + shift, [lane, 1], limits),
        limited_access(1, -low, [1, 0], vec![row_limit]),
        access(2, 0, &[1, 0]),
        access(3, 0, &[lane, 1]),
    ];
    let ty = dtype.compute();
    let op = r.one_of(&[Reduction::Max, Reduction::Min]);
    let load = |dst, access| Inst::Load { dst, access };
    let maximum = |dst, a, b| Inst::Binary {
        op: Binary::Max,
        dst,
        a,
        b,
        site: 0,
    };
    let reduce = vec![
        load(R[0], 0),
        Inst::Reduce {
            op,
            acc: R[1],
            a: R[0],
        },
    ];
    let row = vec![
        load(R[2], 1),
        maximum(R[3], R[1], R[2]),
        Inst::Store {
            access: 2,
            src: R[3],
        },
    ];
    let (x, y, z) = (Reg(4), Reg(5), Reg(6));
    let lanes = vec![
        load(x, 0),
        load(y, 1),
        maximum(z, x, y),
        Inst::Store { access: 3, src: z },
    ];
    let arg = |written| Arg { dtype, written };
    Case {
        lens: vec![(outer + 2) * lane, outer + 2, outer, outer * lane],
        program: TileProgram {
            axes: vec![outer.into()],
            inner: vec![lane.into()],
            schedule: Schedule::Rows,
            accesses,
            args: vec![arg(false), arg(false), arg(true), arg(true)],
            registers: vec![ty; 7],
            stages: vec![stage(true, reduce), stage(false, row), stage(true, lanes)],
            sites: 1,
            ..TileProgram::default()
        },
    }
}

#[test]
fn rows_with_limits() {
    let mut r = Random(12);
    for dtype in [DType::F32, DType::F16, DType::I64, DType::Bool, DType::U8] {
        for lane in RUNS {
            for i in 0..16 {
                let case = padded_rows(dtype, lane, &mut r);
                compare(&case, &format!("{dtype:?}, rows of {lane}, {i}"), &mut r);
            }
        }
    }
}
