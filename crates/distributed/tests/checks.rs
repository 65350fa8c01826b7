//! Each collective operation of a group beside a plain computation in f64 and i64. Every rank can compute every
//! rank's operand.

use kiln_distributed::{ProcessGroup, ReduceOp};
use kiln_tensor::{DType, Device, Result, Tensor};

const REDUCTIONS: [ReduceOp; 5] = [
    ReduceOp::Sum,
    ReduceOp::Mean,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::Product,
];

/// An element of a rank's operand, exact in every dtype: sums and products of few ranks are too.
fn element(rank: usize, i: usize, dtype: DType) -> f64 {
    let n = ((rank * 7 + i * 3) % 4) as f64;
    match dtype {
        DType::Bool => f64::from(n > 1.0),
        DType::U8 => n,
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 => match (i % 11, rank) {
            (4, 1) => f64::NAN,
            (7, 0) => f64::INFINITY,
            _ => (n - 1.5) * 0.5,
        },
        _ => n - 2.0,
    }
}

fn operand(rank: usize, len: usize, dtype: DType) -> Vec<f64> {
    (0..len).map(|i| element(rank, i, dtype)).collect()
}

fn tensor(of: &[f64], dtype: DType) -> Tensor {
    Tensor::from(of.to_vec()).to_dtype(dtype)
}

fn reduced(op: ReduceOp, operands: &[Vec<f64>]) -> Vec<f64> {
    let len = operands[0].len();
    let n = operands.len() as f64;
    let column = |i: usize| operands.iter().map(move |x| x[i]);
    let extreme = |i: usize, pick: fn(f64, f64) -> f64| match column(i).any(f64::is_nan) {
        true => f64::NAN,
        false => column(i).reduce(pick).unwrap_or(f64::NAN),
    };
    (0..len)
        .map(|i| match op {
            ReduceOp::Sum => column(i).sum(),
            ReduceOp::Mean => column(i).sum::<f64>() / n,
            ReduceOp::Product => column(i).product(),
            ReduceOp::Max => extreme(i, f64::max),
            ReduceOp::Min => extreme(i, f64::min),
        })
        .collect()
}

/// The distance from 1 to the next number.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        DType::F32 => 2f64.powi(-23),
        _ => 2f64.powi(-52),
    }
}

/// A result, and what it should be.
struct Case {
    what: &'static str,
    y: Tensor,
    expected: Vec<f64>,
}

fn case(what: &'static str, y: Tensor, expected: &[f64]) -> Case {
    let expected = expected.to_vec();
    Case { what, y, expected }
}

/// Errs unless a result has the expected elements, up to a rounding.
fn check(case: &Case) -> Result<()> {
    let Case { what, y, expected } = case;
    let dtype = y.dtype();
    let found = y.to_dtype(DType::F64).to_vec::<f64>()?;
    let close = |(a, b): (&f64, &f64)| {
        let near = (a - b).abs() <= 4.0 * unit(dtype) * b.abs();
        a == b || a.is_nan() && b.is_nan() || dtype.is_float() && near
    };
    assert_eq!(found.len(), expected.len(), "{what} of {dtype}");
    assert!(
        found.iter().zip(expected).all(close),
        "{what} of {dtype}: {found:?}, not {expected:?}"
    );
    Ok(())
}

/// Checks every operation of a group.
pub fn all(group: &ProcessGroup) -> Result<()> {
    // An emulated GPU takes its time.
    let lens: &[usize] = match group.device() {
        Device::Cpu => &[0, 1, 5, 1000],
        _ => &[0, 5],
    };
    for dtype in DType::ALL {
        for &len in lens {
            // All are recorded before the first is read, so they are one program.
            let mut cases = moves(group, dtype, len)?;
            if dtype.computes() {
                cases.extend(reductions(group, dtype, len));
            }
            cases.iter().try_for_each(check)?;
        }
    }
    Ok(())
}

fn reductions(group: &ProcessGroup, dtype: DType, len: usize) -> Vec<Case> {
    let (rank, n) = (group.rank(), group.size());
    let mut cases = Vec::new();
    for op in REDUCTIONS {
        let defined = match op {
            ReduceOp::Max | ReduceOp::Min => true,
            ReduceOp::Mean => dtype.is_float(),
            ReduceOp::Sum | ReduceOp::Product => dtype != DType::Bool,
        };
        if !defined {
            continue;
        }
        let operands: Vec<_> = (0..n).map(|r| operand(r, len, dtype)).collect();
        let x = tensor(&operands[rank], dtype).to(group.device());
        let y = reduced(op, &operands);
        cases.push(case("all_reduce", group.all_reduce(&x, op), &y));
        let root = n - 1;
        let here = if rank == root { &y } else { &operands[rank] };
        cases.push(case("reduce", group.reduce(&x, root, op), here));
        let operands: Vec<_> = (0..n).map(|r| operand(r, n * len, dtype)).collect();
        let whole = reduced(op, &operands);
        let part = &whole[rank * len..(rank + 1) * len];
        let x = tensor(&operands[rank], dtype).to(group.device());
        let y = group.reduce_scatter(x, op);
        cases.push(case("reduce_scatter", y, part));
    }
    cases
}

fn moves(group: &ProcessGroup, dtype: DType, len: usize) -> Result<Vec<Case>> {
    let (rank, n) = (group.rank(), group.size());
    // In the dtype: floats of 8 bits round the numbers.
    let rounded = |of: Vec<f64>| tensor(&of, dtype).to_dtype(DType::F64).to_vec::<f64>();
    let operands = (0..n).map(|r| rounded(operand(r, len, dtype)));
    let operands = operands.collect::<Result<Vec<_>>>()?;
    let long = (0..n).map(|r| rounded(operand(r, n * len, dtype)));
    let long = long.collect::<Result<Vec<_>>>()?;
    let own = |t: Tensor| t.to(group.device());
    let x = own(tensor(&operands[rank], dtype));
    let joined = operands.concat();
    let here: &[f64] = if rank == 0 { &joined } else { &[] };
    let given = match rank == n - 1 {
        true => tensor(&joined, dtype),
        false => Tensor::zeros([len], dtype),
    };
    let parts = long
        .iter()
        .flat_map(|x| x[rank * len..(rank + 1) * len].to_vec());
    let parts: Vec<f64> = parts.collect();
    Ok(vec![
        case("broadcast", group.broadcast(&x, n - 1), &operands[n - 1]),
        case("all_gather", group.all_gather(&x), &joined),
        case("gather", group.gather(&x, 0), here),
        case("scatter", group.scatter(own(given), n - 1), &operands[rank]),
        case(
            "all_to_all",
            group.all_to_all(own(tensor(&long[rank], dtype))),
            &parts,
        ),
    ])
}
