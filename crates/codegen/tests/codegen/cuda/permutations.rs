//! Kernels that read along one axis and write along another.

use super::elements::values;
use super::families::{Case, case_count};
use super::{check, lowered, sources};
use crate::device;
use kiln_base::DType;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Pw};

/// Transposed operands of random sizes and dtypes, added to one in order.
#[test]
fn transposed_tiles_are_right() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(91);
    let mut count = 0;
    for i in 0..2 * case_count() {
        let dtypes = [
            DType::F16,
            DType::BF16,
            DType::F32,
            DType::F64,
            DType::I8,
            DType::I64,
        ];
        let dtype = dtypes[i % dtypes.len()];
        let long = [15, 16, 17, 31, 32, 33, 64, 67];
        let [rows, columns] = [rng.one(long), rng.one(long)];
        let batch = rng.one([0, 1, 2, 3]);
        // The axes of rows and columns are adjacent, or have another axis between them.
        let (operand_shape, perm) = match rng.below(3) {
            0 => (vec![columns, rows], vec![1, 0]),
            1 => (vec![batch, columns, rows], vec![0, 2, 1]),
            _ => (vec![columns, 3, batch, rows], vec![2, 3, 1, 0]),
        };
        let result_shape: Vec<usize> = perm.iter().map(|axis| operand_shape[*axis]).collect();
        let mut case = Case::default();
        let mut y = case.input(values(dtype, &result_shape, &mut rng));
        for _ in 0..1 + rng.below(2) {
            let x = case.input(values(dtype, &operand_shape, &mut rng));
            let mut b = case.builder();
            let x = b.permute(&x, &perm).unwrap();
            y = b.pointwise(Pw::Add, &[x, y]).unwrap();
        }
        if dtype.is_float() && rng.chance(0.5) {
            let result_dtype = rng.one([DType::F16, DType::F32]);
            y = case.builder().cast(&y, result_dtype).unwrap();
        }
        case.graph.add_output(y);
        let text = sources(&lowered(&case.graph, true).unwrap().sequence());
        let tiled = text.contains("shared.tile");
        count += usize::from(tiled);
        let empty = result_shape.contains(&0);
        assert!(
            tiled || empty || rows.min(columns) < 16,
            "{operand_shape:?} {perm:?}\n{text}"
        );
        if let Err(e) = check(&case.graph, &case.inputs, false) {
            panic!("{dtype} {operand_shape:?} {perm:?}: {e}\n{text}");
        }
    }
    assert!(2 * count >= case_count(), "{count}");
}
