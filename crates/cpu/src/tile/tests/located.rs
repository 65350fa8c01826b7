//! Operations that depend on the position of lanes: indices, data-dependent addresses, random numbers, accesses in
//! short runs or with limits, arg-reductions; and data errors.

use super::*;
use kiln_base::Dim;
use kiln_base::prim::RandomKind;

/// Returns a program of one stage over an array of two axes.
fn plane(
    [rows, columns]: [i64; 2],
    args: Vec<(Arg, i64)>,
    accesses: Vec<Access>,
    registers: Vec<Compute>,
    code: Vec<Inst>,
) -> Case {
    let (args, lens) = args.into_iter().unzip();
    Case {
        lens,
        program: TileProgram {
            axes: vec![rows.into(), columns.into()],
            args,
            accesses,
            registers,
            stages: vec![stage(false, code)],
            sites: 3,
            ..TileProgram::default()
        },
    }
}

fn arg(dtype: DType, written: bool) -> Arg {
    Arg { dtype, written }
}

fn load(dst: usize, access: u16) -> Inst {
    Inst::Load {
        dst: R[dst],
        access,
    }
}

fn store(src: usize, access: u16) -> Inst {
    Inst::Store {
        access,
        src: R[src],
    }
}

const EXTENTS: [[i64; 2]; 9] = [
    [1, 1],
    [3, 5],
    [7, 16],
    [2, 33],
    [600, 1],
    [5, 100],
    [1, 700],
    [40, 40],
    [97, 3],
];

#[test]
fn indices() {
    let mut r = Random(21);
    for extents in EXTENTS {
        let [rows, columns] = extents;
        for strides in [[columns, 1], [0, 1], [1, 0], [1, rows], [-3, 2], [0, 0]] {
            let index = Inst::Index {
                dst: R[0],
                offset: (r.below(9) as i64 - 4).into(),
                strides: strides.map(Dim::from).to_vec(),
            };
            let case = plane(
                extents,
                vec![(arg(DType::I64, true), rows * columns)],
                vec![access(0, 0, &[columns, 1])],
                vec![Compute::I64],
                vec![index, store(0, 0)],
            );
            compare(&case, &format!("{extents:?} by {strides:?}"), &mut r);
        }
    }
}

#[test]
fn divisions_report_the_first_zero() {
    let mut r = Random(22);
    for op in Binary::ALL.iter().filter(|op| op.divides()) {
        for ty in [Compute::I32, Compute::I64] {
            for n in SIZES {
                let (dst, a, b, site) = (R[2], R[0], R[1], 0);
                let op = *op;
                let code = vec![Inst::Binary {
                    op,
                    dst,
                    a,
                    b,
                    site,
                }];
                let stores = [(R[2], dtype_of(ty))];
                let case = pointwise(n, &[dtype_of(ty); 2], vec![ty; 3], code, &stores);
                compare(&case, &format!("{op:?} of {ty:?}"), &mut r);
            }
        }
    }
}

#[test]
fn random_numbers() {
    let mut r = Random(23);
    let kinds = [
        (RandomKind::Bits, Compute::I64),
        (RandomKind::Uniform, Compute::F32),
        (RandomKind::Uniform, Compute::F64),
        (RandomKind::Normal, Compute::F32),
        (RandomKind::Normal, Compute::F64),
    ];
    for (kind, ty) in kinds {
        for extents in EXTENTS {
            let [rows, columns] = extents;
            // Positions in order, uniform, and from data; with one seed or many.
            for variant in 0..4 {
                let strides = if variant == 1 { [0, 0] } else { [columns, 1] };
                let index = match variant {
                    2 => load(3, 1),
                    _ => Inst::Index {
                        dst: R[3],
                        offset: 0i64.into(),
                        strides: strides.map(Dim::from).to_vec(),
                    },
                };
                let (dst, seed, offset) = (R[4], R[0], R[1]);
                let index_of = R[3];
                let code = vec![
                    load(0, if variant == 3 { 1 } else { 0 }),
                    load(1, 2),
                    index,
                    Inst::Random {
                        kind,
                        dst,
                        seed,
                        offset,
                        index: index_of,
                    },
                    store(4, 3),
                ];
                let len = rows * columns;
                let case = plane(
                    extents,
                    vec![
                        (arg(DType::I64, false), 2),
                        (arg(DType::I64, false), len),
                        (arg(dtype_of(ty), true), len),
                    ],
                    vec![
                        access(0, 0, &[0, 0]),
                        access(1, 0, &[columns, 1]),
                        access(0, 1, &[0, 0]),
                        access(2, 0, &[columns, 1]),
                    ],
                    vec![Compute::I64, Compute::I64, Compute::I64, Compute::I64, ty],
                    code,
                );
                let label = format!("{kind:?} of {ty:?}, {extents:?}, {variant}");
                compare(&case, &label, &mut r);
            }
        }
    }
}

/// Returns indices, of which a few may be out of bounds.
fn indices_of(n: i64, extent: i64, errors: bool, r: &mut Random) -> Vec<u8> {
    let index = |r: &mut Random| match r.below(40) {
        0 if errors => *[-1, extent, i64::MIN, i64::MAX].get(r.below(4)).unwrap(),
        _ => r.below(extent.max(1) as usize) as i64,
    };
    (0..n).flat_map(|_| index(r).to_le_bytes()).collect()
}

#[test]
fn gathers() {
    let mut r = Random(24);
    let mut emitted = 0;
    for dtype in DType::ALL {
        for extents in EXTENTS {
            for (variant, errors) in [(0, false), (0, true), (1, false), (1, true), (2, true)] {
                let [rows, columns] = extents;
                let extent = 1 + r.below(20) as i64;
                let len = rows * columns;
                // One index per row; one index per element within its row; two indices per row.
                let (indices, strides, stride, table) = match variant {
                    1 => (len, [columns, 1], 1, rows * extent),
                    _ => (rows, [1, 0], columns, extent * columns),
                };
                let parts = if variant == 2 { 2 } else { 1 };
                let part = |site: u32| Dynamic {
                    index: R[site as usize],
                    stride: (if site == 1 { 0 } else { stride }).into(),
                    extent: extent.into(),
                    site,
                };
                let fixed = if variant == 1 { [extent, 0] } else { [0, 1] };
                let gather = Inst::LoadAt {
                    dst: R[2],
                    access: 2,
                    dynamic: (0..parts).map(part).collect(),
                };
                let case = plane(
                    extents,
                    vec![
                        (arg(DType::I64, false), indices),
                        (arg(DType::I64, false), indices),
                        (arg(dtype, false), table),
                        (arg(dtype, true), len),
                    ],
                    vec![
                        access(0, 0, &strides),
                        access(1, 0, &strides),
                        access(2, 0, &fixed),
                        access(3, 0, &[columns, 1]),
                    ],
                    vec![Compute::I64, Compute::I64, dtype.compute()],
                    vec![load(0, 0), load(1, 1), gather, store(2, 3)],
                );
                let args: Vec<Vec<u8>> = (case.program.args.iter().zip(&case.lens).enumerate())
                    .map(|(i, (a, n))| match i {
                        0 | 1 => indices_of(*n, extent, errors, &mut r),
                        _ => elements(a.dtype, *n as usize, &mut r),
                    })
                    .collect();
                let label = format!("{dtype:?} {extents:?}, {variant}, {extent}");
                emitted += compare_with(&case, &args, &label, &mut r);
            }
        }
    }
    assert!(emitted > 350 * levels(), "{emitted} functions");
}

/// Tests accesses that are transposed, in short runs, or with limits.
#[test]
fn transposed_and_limited_accesses() {
    let mut r = Random(25);
    for dtype in [DType::F32, DType::F64, DType::Bool, DType::BF16, DType::I8] {
        for extents in EXTENTS {
            let [rows, columns] = extents;
            for variant in 0..8 {
                let order = |transposed: bool| if transposed { [1, rows] } else { [columns, 1] };
                let mut accesses = vec![
                    access(0, 0, &order(variant & 1 > 0)),
                    access(1, 0, &[0, 1]),
                    access(2, 0, &order(variant & 2 > 0)),
                ];
                if variant & 4 > 0 {
                    let shift = r.below(5) as i64 - 2;
                    for a in [0, 2] {
                        accesses[a].bounds = vec![kiln_plan::tile::Bound {
                            offset: shift.into(),
                            strides: vec![1i64.into(), 1i64.into()],
                            extent: (rows + columns - 3).max(0).into(),
                        }];
                    }
                }
                let ty = dtype.compute();
                let (a, b, dst, site) = (R[0], R[1], R[2], 0);
                let op = Binary::Max;
                let code = vec![
                    load(0, 0),
                    load(1, 1),
                    Inst::Binary {
                        op,
                        dst,
                        a,
                        b,
                        site,
                    },
                    store(2, 2),
                ];
                let len = rows * columns;
                let case = plane(
                    extents,
                    vec![
                        (arg(dtype, false), len),
                        (arg(dtype, false), columns),
                        (arg(dtype, true), len),
                    ],
                    accesses,
                    vec![ty; 3],
                    code,
                );
                compare(&case, &format!("{dtype:?} {extents:?}, {variant}"), &mut r);
            }
        }
    }
}

/// Tests the position of the maximum or minimum, and reductions of masks, along rows and columns.
#[test]
fn reductions_of_masks_and_positions() {
    let mut r = Random(26);
    for schedule in [Schedule::Rows, Schedule::Lanes] {
        for dtype in [DType::F32, DType::F64, DType::I32, DType::F16] {
            for [outer, n] in EXTENTS {
                for op in [Reduction::Max, Reduction::Min] {
                    let ty = dtype.compute();
                    let [x, mask, any, location, _] = R;
                    let zero = Reg(5);
                    let code = vec![
                        load(0, 0),
                        Inst::Binary {
                            op: Binary::Gt,
                            dst: mask,
                            a: x,
                            b: zero,
                            site: 0,
                        },
                        Inst::Reduce {
                            op,
                            acc: any,
                            a: mask,
                        },
                        Inst::ArgReduce {
                            op,
                            acc: location,
                            a: x,
                        },
                    ];
                    let mut case = plane(
                        [outer, n],
                        vec![
                            (arg(dtype, false), outer * n),
                            (arg(DType::Bool, true), outer),
                            (arg(DType::I64, true), outer),
                        ],
                        vec![
                            access(
                                0,
                                0,
                                &match schedule {
                                    Schedule::Rows => [n, 1],
                                    Schedule::Lanes => [1, outer],
                                },
                            ),
                            access(1, 0, &[1, 0]),
                            access(2, 0, &[1, 0]),
                        ],
                        vec![ty, Compute::Mask, Compute::Mask, Compute::I64, ty, ty],
                        code,
                    );
                    let p = &mut case.program;
                    (p.axes, p.inner) = (vec![outer.into()], vec![n.into()]);
                    p.schedule = schedule;
                    p.constants = vec![(zero, Scalar::Int(0))];
                    p.stages[0].over_inner = true;
                    p.stages.push(stage(false, vec![store(2, 1), store(3, 2)]));
                    let label = format!("{op:?} of {dtype:?}, {schedule:?}, {outer}x{n}");
                    compare(&case, &label, &mut r);
                }
            }
        }
    }
}
