//! Pointwise programs.

use super::*;

#[test]
fn primitives_on_one_operand() {
    let mut r = Random(1);
    for op in Unary::ALL {
        for ty in TYPES {
            let Some(result) = check::unary_result(*op, ty) else {
                continue;
            };
            let code = vec![Inst::Unary {
                op: *op,
                dst: R[1],
                a: R[0],
            }];
            for n in SIZES {
                let stores = [(R[1], dtype_of(result))];
                let case = pointwise(n, &[dtype_of(ty)], vec![ty, result], code.clone(), &stores);
                compare(&case, &format!("{op:?} of {ty:?}"), &mut r);
            }
        }
    }
}

#[test]
fn primitives_on_two_operands() {
    let mut r = Random(2);
    for op in Binary::ALL {
        for ty in TYPES {
            let Some(result) = check::binary_result(*op, ty) else {
                continue;
            };
            if op.divides() && !ty.is_float() {
                continue;
            }
            let (dst, site) = (R[2], 0);
            let (a, b) = (R[0], R[1]);
            let op = *op;
            let code = vec![Inst::Binary {
                op,
                dst,
                a,
                b,
                site,
            }];
            for n in SIZES {
                let stores = [(R[2], dtype_of(result))];
                let types = vec![ty, ty, result];
                let case = pointwise(n, &[dtype_of(ty); 2], types, code.clone(), &stores);
                compare(&case, &format!("{op:?} of {ty:?}"), &mut r);
            }
        }
    }
}

/// Tests spilling: more live values than registers, of which the farthest is used last.
#[test]
fn spilled_values() {
    const VALUES: u16 = 40;
    let check = |ty: Compute| {
        let sum = Reg(VALUES);
        let add = |i: u16| Inst::Binary {
            op: Binary::Add,
            dst: sum,
            a: if i == 0 { Reg(0) } else { sum },
            b: Reg(i),
            site: 0,
        };
        let code: Vec<Inst> = (0..VALUES).map(add).collect();
        let types = vec![ty; usize::from(VALUES) + 1];
        for n in SIZES {
            let loads = vec![dtype_of(ty); usize::from(VALUES)];
            let case = pointwise(
                n,
                &loads,
                types.clone(),
                code.clone(),
                &[(sum, dtype_of(ty))],
            );
            compare(&case, &format!("{VALUES} values of {ty:?}"), &mut Random(5));
        }
    };
    check(Compute::F64);
    check(Compute::F32);
    let buggy = move || {
        seed(Some("the result of a step is spilled"));
        check(Compute::F64);
    };
    if Features::AVX2.is_supported() {
        assert!(std::thread::spawn(buggy).join().is_err(), "not found");
    }
}

#[test]
fn selections() {
    let mut r = Random(3);
    for ty in TYPES {
        for n in SIZES {
            let (dst, mask, a, b) = (R[3], R[0], R[1], R[2]);
            let code = vec![Inst::Select { dst, mask, a, b }];
            let types = vec![Compute::Mask, ty, ty, ty];
            let loads = [DType::Bool, dtype_of(ty), dtype_of(ty)];
            let case = pointwise(n, &loads, types, code, &[(R[3], dtype_of(ty))]);
            let emitted = compare(&case, &format!("select of {ty:?}"), &mut r);
            assert_eq!(emitted, levels());
        }
    }
}

#[test]
fn casts_and_memory_of_every_dtype() {
    let mut r = Random(4);
    for from in DType::ALL {
        for to in DType::ALL {
            for n in [1, 3, 8, 16, 31, 100, 513] {
                let types = vec![from.compute(), to.compute()];
                let (dst, a) = (R[1], R[0]);
                let code = vec![Inst::Convert { dst, a, from, to }];
                let case = pointwise(n, &[from], types.clone(), code, &[(R[1], to)]);
                compare(&case, &format!("{from:?} as {to:?}"), &mut r);
                // A store converts too.
                let case = pointwise(n, &[from], types, vec![], &[(R[0], to)]);
                compare(&case, &format!("{from:?} to {to:?}"), &mut r);
            }
        }
    }
}

/// Tests f32 numbers of every exponent, with fractions around those of all floats of 8 bits and their midpoints.
#[test]
fn floats_of_8_bits() {
    let mut r = Random(5);
    let neighbours = |high: u32| [0, 1, 0x7_ffff].map(|low| (high << 19 | low).to_le_bytes());
    let numbers: Vec<u8> = (0..1 << 13).flat_map(neighbours).flatten().collect();
    let n = numbers.len() as i64 / 4;
    for to in DType::ALL.into_iter().filter(|d| d.float8().is_some()) {
        let (dst, a, from) = (R[1], R[0], DType::F32);
        let code = vec![Inst::Convert { dst, a, from, to }];
        let stores = [(R[0], to), (R[1], from)];
        let case = pointwise(n, &[from], vec![Compute::F32; 2], code, &stores);
        let results = [vec![0; n as usize], vec![0; 4 * n as usize]];
        let args = [numbers.clone(), results[0].clone(), results[1].clone()];
        let emitted = compare_with(&case, &args, to.name(), &mut r);
        assert_eq!(emitted, levels());
    }
}

/// Tests casts of f32 numbers to narrow integers after a random sequence of roundings and clamps.
fn check_clamped_casts(r: &mut Random) {
    const BOUNDS: [f64; 14] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        255.0,
        127.0,
        -128.0,
        65535.0,
        0.5,
        100.25,
        -300.5,
        70000.0,
        f64::INFINITY,
        f64::NAN,
    ];
    let to = r.one_of(&[DType::U8, DType::I8, DType::U16, DType::I16]);
    let steps = 1 + r.below(5) as u16;
    let (mut code, mut constants) = (vec![], vec![]);
    for i in 0..steps {
        // The constants of the steps follow the registers of all numbers.
        let (x, c, dst) = (Reg(i), Reg(steps + 2 + i), Reg(i + 1));
        let (a, b) = if r.below(2) == 0 { (x, c) } else { (c, x) };
        let op = r.one_of(&[Binary::Max, Binary::Min]);
        let site = 0;
        code.push(match r.below(3) {
            0 => Inst::Unary {
                op: r.one_of(&[Unary::Round, Unary::Round, Unary::Floor]),
                dst,
                a: x,
            },
            _ => Inst::Binary {
                op,
                dst,
                a,
                b,
                site,
            },
        });
        constants.push((c, Scalar::Float(r.one_of(&BOUNDS))));
    }
    let (a, dst) = (Reg(steps), Reg(steps + 1));
    let from = DType::F32;
    code.push(Inst::Convert { dst, a, from, to });
    let mut types = vec![Compute::F32; 2 * usize::from(steps) + 3];
    types[usize::from(dst.0)] = to.compute();
    // Also stores it as i32 and, except for the sign of zero, as before the cast.
    let mut stores = vec![(dst, to), (dst, DType::I32)];
    if r.below(2) == 0 {
        let (op, dst) = (Unary::Abs, Reg(2 * steps + 2));
        code.push(Inst::Unary { op, dst, a });
        stores.push((dst, from));
    }
    let mut case = pointwise(r.one_of(&SIZES), &[from], types, code, &stores);
    case.program.constants = constants;
    let emitted = compare(&case, &format!("{:?}", case.program), r);
    assert_eq!(emitted, levels());
}

#[test]
fn clamped_casts() {
    for seed in 0..400 {
        check_clamped_casts(&mut Random(seed * 31 + 7));
    }
}

/// Returns a random program of `steps` instructions on the existing registers, without data errors.
pub(super) fn random_code(
    r: &mut Random,
    registers: &mut Vec<Compute>,
    first: usize,
    steps: usize,
) -> Vec<Inst> {
    let mut code = vec![];
    while code.len() < steps {
        let n = registers.len();
        let from = if r.below(3) == 0 {
            first
        } else {
            n.saturating_sub(8).max(first)
        };
        let a = Reg((from + r.below(n - from)) as u16);
        let ty = registers[usize::from(a.0)];
        let same_type: Vec<Reg> = (first..n)
            .filter(|i| registers[*i] == ty)
            .map(|i| Reg(i as u16))
            .collect();
        let b = r.one_of(&same_type);
        let dst = Reg(n as u16);
        let (inst, result) = match r.below(8) {
            0..=1 => {
                let op = r.one_of(Unary::ALL);
                let Some(result) = check::unary_result(op, ty) else {
                    continue;
                };
                (Inst::Unary { op, dst, a }, result)
            }
            2..=4 => {
                let op = r.one_of(Binary::ALL);
                let Some(result) = check::binary_result(op, ty) else {
                    continue;
                };
                if op.divides() && !ty.is_float() {
                    continue;
                }
                let site = 0;
                (
                    Inst::Binary {
                        op,
                        dst,
                        a,
                        b,
                        site,
                    },
                    result,
                )
            }
            5 => {
                let masks: Vec<Reg> = (first..n)
                    .filter(|i| registers[*i] == Compute::Mask)
                    .map(|i| Reg(i as u16))
                    .collect();
                if masks.is_empty() {
                    continue;
                }
                let mask = r.one_of(&masks);
                (Inst::Select { dst, mask, a, b }, ty)
            }
            _ => {
                let to = r.one_of(&DTYPES);
                let from = dtype_of(ty);
                (Inst::Convert { dst, a, from, to }, to.compute())
            }
        };
        registers.push(result);
        code.push(inst);
    }
    code
}

/// Returns a random program over elements.
pub(super) fn elementwise(r: &mut Random) -> Case {
    let loads: Vec<DType> = (0..1 + r.below(4)).map(|_| r.one_of(&DTYPES)).collect();
    let mut registers: Vec<Compute> = loads.iter().map(|d| d.compute()).collect();
    let constants = r.below(4);
    let scalars = [0.0, 1.0, -2.5, 1e10, f64::NAN];
    let constant_values: Vec<(Reg, Scalar)> = (0..constants)
        .map(|i| {
            let value = Scalar::Float(r.one_of(&scalars));
            (Reg((loads.len() + i) as u16), value)
        })
        .collect();
    for _ in 0..constants {
        registers.push(r.one_of(&TYPES));
    }
    let steps = if r.below(10) == 0 {
        120
    } else {
        1 + r.below(20)
    };
    let code = random_code(r, &mut registers, 0, steps);
    let stores: Vec<(Reg, DType)> = (0..1 + r.below(3))
        .map(|i| {
            let last = registers.len() - 1 - i.min(registers.len() - 1);
            (Reg(last as u16), r.one_of(&DTYPES))
        })
        .collect();
    let n = r.one_of(&SIZES);
    let mut case = pointwise(n, &loads, registers, code, &stores);
    case.program.constants = constant_values;
    case.program.sizes.stream = [None, Some(true)][r.below(2)];
    case
}

#[test]
fn random_programs() {
    let mut emitted = 0;
    for seed in 0..SEEDS {
        let mut r = Random(seed * 977 + 13);
        let case = elementwise(&mut r);
        emitted += compare(&case, &format!("seed {seed}"), &mut r);
    }
    assert!(
        2 * emitted > SEEDS as usize * levels(),
        "{emitted} functions"
    );
}
