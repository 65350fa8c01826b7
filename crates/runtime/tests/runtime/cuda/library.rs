//! Products by cuBLASLt, which the emulated driver has a stand-in for. It checks the calls.

use super::alone::alone;
use super::build::{buffer, device, input, output, step};
use half::{bf16, f16};
use kiln_base::{DType, Dim};
use kiln_plan::*;
use kiln_runtime::cuda::{Device, library_algorithms};
use kiln_runtime::{Buffer, Executable};
use std::sync::Arc;

/// The environment in which the stand-in is found.
fn environment() -> String {
    kiln_fake_cuda::library().display().to_string()
}

#[test]
fn products_by_a_library_are_those_in_f64() {
    if device().is_some() {
        alone("library::products", &[("KILN_CUBLASLT", &environment())]);
    }
}

#[test]
fn a_missing_library_is_an_error_that_lists_where_it_was_looked_for() {
    if device().is_some() {
        alone("library::absent", &[("KILN_CUBLASLT", "/nowhere/lt.so")]);
    }
}

#[test]
#[ignore = "run by another test"]
fn absent() {
    let device = device().unwrap();
    let product = described(DType::F32, DType::F32, [2, 3, 4], &[], [Order::Rows; 2]);
    let error = library_algorithms(&device, &product.0).unwrap_err();
    let error = error.to_string();
    for part in [
        "cuBLASLt was not found",
        "/nowhere/lt.so: no such file",
        "KILN_CUBLASLT",
    ] {
        assert!(error.contains(part), "{error}");
    }
    // So is that of a program that needs it.
    let made = Executable::on_gpu(plan(&product.0, product.1), &device);
    assert_eq!(made.err().unwrap().to_string(), error);
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Order {
    Rows,
    Columns,
    /// By rows, which lie further apart and begin late.
    Wide,
    /// The same matrix for all products of a batch.
    Shared,
}

/// A product of matrices in memory, and the lengths of its operands.
fn described(
    dtype: DType,
    stored: DType,
    [m, k, n]: [i64; 3],
    batch: &[i64],
    orders: [Order; 2],
) -> (LibraryProduct, [i64; 2]) {
    let count: i64 = batch.iter().product();
    let mut lens = [0; 2];
    let mut matrix = |side: usize, [rows, columns]: [i64; 2]| {
        let order = orders[side];
        let (offset, row, column) = match order {
            Order::Rows | Order::Shared => (0, columns, 1),
            Order::Columns => (0, 1, rows),
            Order::Wide => (columns + 3, columns + 8, 1),
        };
        let each = (rows - 1) * row + (columns - 1) * column + 1;
        let mut stride = if order == Order::Shared { 0 } else { each };
        lens[side] = offset + stride * (count - 1) + each;
        let strides = batch.iter().rev().map(|extent| {
            let own = stride;
            stride *= extent;
            own
        });
        let mut batch_strides: Vec<Dim> = strides.map(Dim::from).collect();
        batch_strides.reverse();
        let matrix = Matrix {
            arg: side as u16,
            offset: offset.into(),
            batch_strides,
            row: row.into(),
            col: column.into(),
        };
        LibraryMatrix::new(&matrix, batch, [rows, columns]).unwrap()
    };
    let operands = [matrix(0, [m, k]), matrix(1, [k, n])];
    let product = LibraryProduct {
        dtype,
        stored,
        tf32: false,
        batch: count,
        m,
        k,
        n,
        operands,
        out: 2,
        workspace: None,
        workspace_bytes: 0,
        algorithm: [0; 8],
    };
    (product, lens)
}

/// A plan that computes a product between two copies of its result in the arena, the second of which is returned.
fn plan(product: &LibraryProduct, lens: [i64; 2]) -> Plan {
    let LibraryProduct {
        dtype,
        stored,
        batch,
        m,
        n,
        ..
    } = *product;
    let [a, b] = lens.map(Dim::from);
    let total = Dim::from(batch * m * n);
    let bytes = Dim::from(product.workspace_bytes as i64);
    let mut product = product.clone();
    product.workspace = (product.workspace_bytes > 0).then_some(3);
    let args = &[0, 1, 2, 4][..3 + usize::from(product.workspace.is_some())];
    let copy = super::build::kernel("copy", "x1[i] = x0[i];", &[stored; 2], &total, 0);
    Plan {
        inputs: vec![
            input(dtype, std::slice::from_ref(&a), Role::Data, 0),
            input(dtype, std::slice::from_ref(&b), Role::Data, 1),
        ],
        outputs: vec![output(stored, std::slice::from_ref(&total), 3, None)],
        buffers: vec![
            buffer(dtype, &a, Allocation::Input),
            buffer(dtype, &b, Allocation::Input),
            buffer(stored, &total, Allocation::Temporary),
            buffer(stored, &total, Allocation::Output),
            buffer(DType::U8, &bytes, Allocation::Temporary),
        ],
        kernels: vec![Arc::new(Kernel::Library(Box::new(product))), copy],
        run: vec![step(0, args, &[]), step(1, &[2, 3], &[])],
        commit: 2,
        ..Plan::default()
    }
}

/// Numbers of a dtype, the same for a seed, as they are and as a tensor.
fn numbers(dtype: DType, len: i64, seed: u64) -> (Vec<f64>, Buffer) {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f64 / (1 << 23) as f64 - 1.0
    };
    let values: Vec<f64> = (0..len).map(|_| next()).collect();
    let shape = [len];
    match dtype {
        DType::F32 => {
            let of: Vec<f32> = values.iter().map(|x| *x as f32).collect();
            let exact = of.iter().map(|x| f64::from(*x)).collect();
            (exact, Buffer::from_slice(&of, &shape).unwrap())
        }
        DType::F16 => {
            let of: Vec<f16> = values.iter().map(|x| f16::from_f64(*x)).collect();
            let exact = of.iter().map(|x| x.to_f64()).collect();
            (exact, Buffer::from_slice(&of, &shape).unwrap())
        }
        DType::BF16 => {
            let of: Vec<bf16> = values.iter().map(|x| bf16::from_f64(*x)).collect();
            let exact = of.iter().map(|x| x.to_f64()).collect();
            (exact, Buffer::from_slice(&of, &shape).unwrap())
        }
        _ => {
            let of: Vec<i8> = values.iter().map(|x| (x * 128.0) as i8).collect();
            let exact = of.iter().map(|x| f64::from(*x)).collect();
            (exact, Buffer::from_slice(&of, &shape).unwrap())
        }
    }
}

fn read(of: &Buffer) -> Vec<f64> {
    match of.dtype() {
        DType::F32 => of
            .to_vec::<f32>()
            .unwrap()
            .iter()
            .map(|x| f64::from(*x))
            .collect(),
        DType::F16 => of
            .to_vec::<f16>()
            .unwrap()
            .iter()
            .map(|x| x.to_f64())
            .collect(),
        DType::BF16 => of
            .to_vec::<bf16>()
            .unwrap()
            .iter()
            .map(|x| x.to_f64())
            .collect(),
        _ => of
            .to_vec::<i32>()
            .unwrap()
            .iter()
            .map(|x| f64::from(*x))
            .collect(),
    }
}

/// The product in f64.
fn expected(product: &LibraryProduct, a: &[f64], b: &[f64]) -> Vec<f64> {
    let LibraryProduct { batch, m, k, n, .. } = *product;
    let at = |x: &LibraryMatrix, b: i64, i: i64, j: i64| {
        let [row, column] = if x.transposed {
            [1, x.leading]
        } else {
            [x.leading, 1]
        };
        (x.offset + b * x.batch_stride + i * row + j * column) as usize
    };
    let [x, y] = &product.operands;
    let element = |e: i64| {
        let (batch, i, j) = (e / (m * n), e / n % m, e % n);
        let terms = (0..k).map(|t| a[at(x, batch, i, t)] * b[at(y, batch, t, j)]);
        terms.sum()
    };
    (0..batch * m * n).map(element).collect()
}

/// Runs a product by each algorithm, launch by launch, as a graph, and as a graph whose addresses change. Returns the
/// number of algorithms.
fn check(device: &Arc<Device>, (product, lens): &(LibraryProduct, [i64; 2])) -> usize {
    let unit = match (product.stored, product.tf32) {
        (DType::F16, _) => 2f64.powi(-11),
        (DType::BF16, _) => 2f64.powi(-8),
        (DType::I32, _) => 0.0,
        (_, true) => 2f64.powi(-10),
        (_, false) => product.k as f64 * 2f64.powi(-23),
    };
    let found = library_algorithms(device, product).unwrap();
    for algorithm in &found {
        let product = LibraryProduct {
            algorithm: algorithm.description,
            workspace_bytes: algorithm.workspace,
            ..product.clone()
        };
        let exe = Executable::on_gpu(plan(&product, *lens), device).unwrap();
        let mut kept = Vec::new();
        for run in 0..7 {
            let (a, left) = numbers(product.dtype, lens[0], 2 * run + 1);
            let (b, right) = numbers(product.dtype, lens[1], 2 * run + 2);
            let inputs = [left, right].map(|x| x.to_gpu(device).unwrap());
            let got = exe.run_shared(&inputs).unwrap();
            let of = |a: &[f64], b: &[f64]| expected(&product, a, b);
            let absolute = |x: &[f64]| x.iter().map(|x| x.abs()).collect::<Vec<f64>>();
            let (right, sizes) = (of(&a, &b), of(&absolute(&a), &absolute(&b)));
            for (i, (got, right)) in read(&got[0]).iter().zip(&right).enumerate() {
                let off = (got - right).abs();
                assert!(
                    off <= unit * sizes[i],
                    "{product:?}, run {run}, {i}: {got}, not {right}"
                );
            }
            // Other memory for the next run.
            kept.push((inputs, got));
        }
    }
    found.len()
}

#[test]
#[ignore = "run by another test"]
fn products() {
    let device = device().unwrap();
    let sizes = [[5, 17, 7], [1, 1, 1], [1, 9, 33], [64, 3, 1]];
    let all = [Order::Rows, Order::Columns, Order::Wide];
    for (dtype, stored) in [
        (DType::F32, DType::F32),
        (DType::F16, DType::F16),
        (DType::BF16, DType::BF16),
        (DType::BF16, DType::F32),
    ] {
        for (i, order) in all.iter().flat_map(|a| all.map(|b| [*a, b])).enumerate() {
            let product = described(dtype, stored, sizes[i % sizes.len()], &[], order);
            // With sums in the workspace, but not in the result.
            assert_eq!(check(&device, &product), 2, "{product:?}");
        }
        let both = [Order::Wide, Order::Shared];
        for order in [
            [Order::Columns, Order::Rows],
            both,
            [Order::Shared, Order::Rows],
        ] {
            let product = described(dtype, stored, [3, 20, 5], &[2, 3], order);
            assert_eq!(check(&device, &product), 2, "{product:?}");
        }
    }
    let (mut tf32, lens) = described(DType::F32, DType::F32, [5, 17, 7], &[], [Order::Rows; 2]);
    tf32.tf32 = true;
    assert_eq!(check(&device, &(tf32, lens)), 2);
    // Bytes only with contiguous terms, in fours.
    let bytes = |sizes, orders| described(DType::I8, DType::I32, sizes, &[2], orders);
    let along = [Order::Rows, Order::Columns];
    for (sizes, orders, count) in [
        ([5, 16, 7], along, 2),
        ([5, 16, 7], [Order::Rows; 2], 0),
        ([5, 17, 7], along, 0),
    ] {
        // The first matrix of a batch of one ends where it ends.
        let (mut product, lens) = bytes(sizes, orders);
        for x in &mut product.operands {
            x.batch_stride = (x.batch_stride + 3) / 4 * 4;
        }
        let lens = lens.map(|n| n + 8);
        assert_eq!(
            check(&device, &(product, lens)),
            count,
            "{sizes:?} {orders:?}"
        );
    }
}

/// A program whose kernel of a library writes where it must not.
#[test]
fn libraries_write_no_memory_that_must_keep_its_values() {
    let Some(device) = device() else { return };
    let (product, lens) = described(DType::F32, DType::F32, [2, 2, 2], &[], [Order::Rows; 2]);
    let right = plan(&product, lens);
    let mut over = right.clone();
    over.outputs[0].donor = Some(0);
    over.outputs[0].buffer = BufferId(2);
    over.buffers[2].allocation = Allocation::Output;
    over.buffers[3].allocation = Allocation::Temporary;
    let text = |plan: Plan| match Executable::on_gpu(plan, &device) {
        Ok(_) => String::new(),
        Err(e) => e.to_string(),
    };
    let found = text(over);
    assert!(found.contains("cublaslt writes over an input"), "{found}");
    // Files hold none.
    let found = Plan::from_bytes(&right.to_bytes()).unwrap_err().to_string();
    assert!(found.contains("a kernel of a library"), "{found}");
}
