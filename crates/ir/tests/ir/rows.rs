//! Each pointwise row's expression agrees with its scalar functions.

use kiln_base::prim::{Binary, ScalarBuilder, Unary};
use kiln_ir::fuzz::Rng;
use kiln_ir::pointwise::Takes;
use kiln_ir::{DType, Pw};

/// A value of a compute type.
#[derive(Copy, Clone, Debug)]
enum Number {
    Float(f64),
    Int(i64),
    Mask(bool),
}
use Number::*;

/// Evaluates an expression while it is built.
#[derive(Default)]
struct Evaluator {
    values: Vec<Number>,
    divided_by_zero: bool,
}

impl Evaluator {
    fn push(&mut self, n: Number) -> u32 {
        self.values.push(n);
        self.values.len() as u32 - 1
    }

    fn get(&self, i: u32) -> Number {
        self.values[i as usize]
    }
}

impl ScalarBuilder for Evaluator {
    fn unary(&mut self, op: Unary, a: u32) -> u32 {
        let result = match self.get(a) {
            Float(x) if op.gives_mask() => Mask(op.eval_f64(x) != 0.0),
            Int(x) if op.gives_mask() => Mask(op.eval_i64(x) != Some(0)),
            Float(x) => Float(op.eval_f64(x)),
            Int(x) => Int(op
                .eval_i64(x)
                .unwrap_or_else(|| panic!("{op:?} on an integer"))),
            Mask(x) => Mask(op.eval_f64(x as u8 as f64) != 0.0),
        };
        self.push(result)
    }

    fn binary(&mut self, op: Binary, a: u32, b: u32) -> u32 {
        let result = match (self.get(a), self.get(b)) {
            (Float(a), Float(b)) if op.gives_mask() => Mask(op.eval_f64(a, b) != 0.0),
            (Float(a), Float(b)) => Float(op.eval_f64(a, b)),
            (Int(a), Int(b)) => match op.eval_i64(a, b) {
                Ok(x) if op.gives_mask() => Mask(x != 0),
                Ok(x) => Int(x),
                Err(_) => {
                    self.divided_by_zero = true;
                    Int(0)
                }
            },
            (Mask(a), Mask(b)) => Mask(op.eval_f64(a as u8 as f64, b as u8 as f64) != 0.0),
            (a, b) => panic!("{op:?} of {a:?} and {b:?}"),
        };
        self.push(result)
    }

    fn select(&mut self, mask: u32, a: u32, b: u32) -> u32 {
        let Mask(mask) = self.get(mask) else {
            panic!("select needs a mask")
        };
        self.push(self.get(if mask { a } else { b }))
    }

    fn constant(&mut self, value: f64, like: u32) -> u32 {
        let result = match self.get(like) {
            Float(_) => Float(value),
            Int(_) => Int(value as i64),
            Mask(_) => Mask(value != 0.0),
        };
        self.push(result)
    }

    fn is_float(&self, a: u32) -> bool {
        matches!(self.get(a), Float(_))
    }
}

/// The expression of a row for these operands; `None` where it divides by zero.
fn expression(row: Pw, operands: &[Number]) -> Option<Number> {
    let mut e = Evaluator::default();
    let ids: Vec<u32> = operands.iter().map(|n| e.push(*n)).collect();
    let result = (row.row().expr)(&mut e, &ids);
    (!e.divided_by_zero).then(|| e.get(result))
}

/// Some tuples of operands, among them all tuples of the first few values.
fn tuples<T: Copy>(row: Pw, special: &[T], mut random: impl FnMut() -> T) -> Vec<Vec<T>> {
    let arity = row.row().arity;
    let mut out: Vec<Vec<T>> = vec![vec![]];
    for _ in 0..arity {
        let longer = out.iter().flat_map(|t| {
            special.iter().map(|x| {
                let mut t = t.clone();
                t.push(*x);
                t
            })
        });
        out = longer.collect();
    }
    out.extend((0..500).map(|_| (0..arity).map(|_| random()).collect()));
    out
}

fn takes_mask(row: Pw) -> bool {
    row.row().takes == Takes::MaskThenAny
}

#[test]
fn expressions_agree_on_floats() {
    let special = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -2.5,
        3.0,
        700.0,
        -700.0,
        1e300,
        5e-324,
    ];
    for &row in Pw::ALL.iter().filter(|r| r.takes(DType::F64)) {
        let mut rng = Rng::new(1);
        for t in tuples(row, &special, || (rng.unit() - 0.5) * 16.0) {
            let mut operands: Vec<Number> = t.iter().map(|x| Float(*x)).collect();
            if takes_mask(row) {
                operands[0] = Mask(t[0] != 0.0);
            }
            let wanted = (row.row().float)(&t);
            let given = match expression(row, &operands) {
                Some(Float(x)) => x,
                Some(Mask(x)) => x as u8 as f64,
                other => panic!("{row:?} gives {other:?}"),
            };
            // Sums of numbers as large as the operands may cancel.
            let largest = t
                .iter()
                .filter(|x| x.is_finite())
                .fold(1f64, |a, x| a.max(x.abs()));
            let close = (given - wanted).abs() <= 1e-14 * largest.max(wanted.abs());
            let same = given == wanted || (given.is_nan() && wanted.is_nan());
            assert!(
                same || close,
                "{row:?}{t:?} is {wanted:?}, its expression {given:?}"
            );
        }
    }
}

#[test]
fn expressions_keep_the_sign_of_zero() {
    let operands = [0.0, -0.0, 1.0, -1.0, 0.25, -0.25, 7.0, f64::NEG_INFINITY];
    let mut differ = vec![];
    for &row in Pw::ALL.iter().filter(|r| r.takes(DType::F64)) {
        for t in tuples(row, &operands, || 1.0) {
            let mut operands: Vec<Number> = t.iter().map(|x| Float(*x)).collect();
            if takes_mask(row) {
                operands[0] = Mask(t[0] != 0.0);
            }
            let wanted = (row.row().float)(&t);
            if let Some(Float(given)) = expression(row, &operands)
                && given == 0.0
                && given.is_sign_negative() != wanted.is_sign_negative()
                && !differ.contains(&row)
            {
                differ.push(row);
            }
        }
    }
    assert_eq!(differ, []);
}

#[test]
fn extremes_return_the_first_of_equal_operands() {
    let bits = |row: Pw, t: &[f64]| (row.row().float)(t).to_bits();
    for [x, y] in [[0.0, -0.0], [-0.0, 0.0f64]] {
        for row in [Pw::Maximum, Pw::Minimum, Pw::Fmax, Pw::Fmin] {
            assert_eq!(
                bits(row, &[x, y]),
                x.to_bits(),
                "{row:?} of {x:?} and {y:?}"
            );
        }
        for row in [Pw::Clamp, Pw::Clip] {
            for bounds in [[y, 6.0], [-1.0, y], [y, y]] {
                assert_eq!(
                    bits(row, &[x, bounds[0], bounds[1]]),
                    x.to_bits(),
                    "{row:?} of {x:?}"
                );
            }
        }
        assert_eq!(
            [bits(Pw::Relu, &[x]), bits(Pw::Relu6, &[x])],
            [x.to_bits(); 2]
        );
    }
}

#[test]
fn expressions_agree_on_integers() {
    let special = [
        0,
        1,
        -1,
        2,
        -7,
        63,
        64,
        -64,
        i64::MAX,
        i64::MIN,
        i64::MIN + 1,
    ];
    for &row in Pw::ALL.iter().filter(|r| r.takes(DType::I64)) {
        let mut rng = Rng::new(2);
        let random = || match rng.below(2) {
            0 => rng.bits() as i64,
            _ => rng.range(-70, 70),
        };
        for t in tuples(row, &special, random) {
            let mut operands: Vec<Number> = t.iter().map(|x| Int(*x)).collect();
            if takes_mask(row) {
                operands[0] = Mask(t[0] != 0);
            }
            let wanted = (row.row().int)(&t).ok();
            let given = expression(row, &operands).map(|n| match n {
                Int(x) => x,
                Mask(x) => x as i64,
                Float(x) => panic!("{row:?} gives {x}"),
            });
            assert_eq!(given, wanted, "{row:?}{t:?}");
        }
    }
}

#[test]
fn expressions_agree_on_masks() {
    for &row in Pw::ALL.iter().filter(|r| r.takes(DType::Bool)) {
        for t in tuples(row, &[false, true], || false) {
            let operands: Vec<Number> = t.iter().map(|x| Mask(*x)).collect();
            let floats: Vec<f64> = t.iter().map(|x| *x as u8 as f64).collect();
            let wanted = (row.row().float)(&floats) != 0.0;
            match expression(row, &operands) {
                Some(Mask(given)) => assert_eq!(given, wanted, "{row:?}{t:?}"),
                other => panic!("{row:?} gives {other:?}"),
            }
        }
    }
}

#[test]
fn names_are_unique_and_found() {
    assert!(Pw::ALL.len() >= 40);
    for &p in Pw::ALL {
        assert_eq!(Pw::from_name(p.name()), Some(p));
    }
}
