//! Errors of calls show the user's line, never one of Kiln's: the rows are called with operands that they refuse.

use super::calls::*;
use kiln_tensor::{DType, Error, Spec, Tensor, compile};

/// The calls that fail on these tensors.
fn failing(x: &Tensor, y: &Tensor) -> Vec<(&'static str, Error)> {
    let groups = OPERATORS.into_iter().chain([CREATION, AUTOGRAD, AMP]);
    let calls = groups.flat_map(|call| (0..).map_while(move |row| call(row, x, y)));
    let error = |(code, found): Called| {
        let run = |all: Vec<Tensor>| all.iter().try_for_each(|t| t.realize().map(drop));
        Some((code, found.and_then(run).err()?))
    };
    calls.filter_map(error).collect()
}

#[test]
fn no_error_of_a_call_shows_a_line_of_kiln() {
    // Whoever asks for a GPU first decides which driver there is.
    kiln_runtime::cuda::set_driver(kiln_fake_cuda::library());
    let floats = |shape: &[usize]| Tensor::rand(shape, DType::F32);
    let far = Tensor::full([2, 3], 99, DType::I64);
    let mut found = failing(&floats(&[2, 3]), &floats(&[4, 5]));
    found.extend(failing(&floats(&[2, 3]), &far));
    found.extend(failing(&far, &floats(&[2, 3]).gt(2.0)));
    for dtype in [DType::F32, DType::Bool] {
        let specs = (Spec::new(DType::F32, (2, 3)), Spec::new(dtype, (2, 3)));
        let recorded = compile(specs, |(x, y): (Tensor, Tensor)| {
            found.extend(failing(&x, &y));
            x
        });
        recorded.unwrap();
    }
    assert!(found.len() > 1500, "only {} calls failed", found.len());
    let texts = found.iter().map(|(call, e)| (call, e.to_string()));
    let wrong: Vec<_> = texts.filter(|(_, text)| text.contains("/src/")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
