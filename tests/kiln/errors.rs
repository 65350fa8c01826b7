//! The texts of errors.

use crate::{matrix, vector};
use kiln::{CrossEntropy, Tensor, Var};

const FILE: &str = "errors.rs";

/// The text of an error with line and column numbers of a test file left out.
pub(crate) fn shown(e: kiln::Error, file: &str) -> String {
    let text = e.to_string();
    let mut out = String::new();
    for line in text.lines() {
        let line = line.trim_end();
        let cut = line
            .find(&format!("{file}:"))
            .map_or(line.len(), |at| at + file.len());
        let tail =
            line[cut..].trim_start_matches([':', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
        let line = format!("{}{tail}", &line[..cut]);
        let digits = line.chars().take_while(|c| c.is_ascii_digit()).count();
        let line = format!("{}{}", " ".repeat(digits), &line[digits..]);
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[test]
fn shapes_that_do_not_fit() {
    let x = matrix(2, 3);
    let y = x.matmul(matrix(4, 5));
    insta::assert_snapshot!(shown(y.to_vec::<f32>().unwrap_err(), FILE));
}

#[test]
fn dims_that_do_not_broadcast() {
    let sum = matrix(2, 3) + vector(&[1.0, 2.0]);
    insta::assert_snapshot!(shown(sum.realize().unwrap_err(), FILE));
}

#[test]
fn an_index_out_of_range_names_the_line_that_recorded_it() {
    let table = vector(&[1.0, 2.0, 3.0]);
    let index = Tensor::from_slice(&[0i64, 3], [2]);
    let picked = table.index_select(0, &index);
    let later = picked.exp() * 2.0;
    insta::assert_snapshot!(shown(later.to_vec::<f32>().unwrap_err(), FILE));
}

#[test]
fn the_same_plan_names_the_line_of_the_current_recording() {
    let pick = |i: i64| vector(&[1.0, 2.0, 3.0]).index_select(0, Tensor::from_slice(&[i], [1]));
    pick(1).realize().unwrap();
    let elsewhere = vector(&[1.0, 2.0, 3.0]).index_select(0, Tensor::from_slice(&[7i64], [1])); // here
    let e = elsewhere.realize().unwrap_err();
    assert!(e.to_string().contains("// here"), "{e}");
}

#[test]
fn a_mask_inside_compile_is_an_error_of_its_line() {
    let (x, mask, flag) = (
        Tensor::from([1.0, 2.0]),
        Tensor::from([true, false]),
        Tensor::from(true),
    );
    let masked: [fn(&Tensor, &Tensor, &Tensor) -> Tensor; 4] = [
        |x, mask, _| x.i(mask),
        |x, _, flag| x.i(flag),
        |x, mask, _| x.index_put(mask, x),
        |x, mask, _| x.masked_select(mask),
    ];
    for f in masked {
        let recorded = kiln::compile((&x, &mask, &flag), |(x, m, s)| f(&x, &m, &s));
        let Err(e) = recorded else {
            panic!("a value is read");
        };
        assert_eq!(e.loc().file(), file!(), "{e}");
    }
}

#[test]
fn a_value_that_a_cell_can_not_hold() {
    let v = Var::new(vector(&[1.0])).unwrap();
    insta::assert_snapshot!(shown(v.assign(vector(&[1.0, 2.0])).unwrap_err(), FILE));
}

#[test]
fn the_wrong_number_of_values() {
    let t = Tensor::from_slice(&[1.0f32, 2.0], [3]);
    insta::assert_snapshot!(shown(t.realize().unwrap_err(), FILE));
}

#[test]
fn parameters_are_called_by_their_names() {
    use kiln::nn::optim::{Optimizer, SGD};
    use kiln::nn::{Forward, Linear, Module, Sequential};
    let fc = Linear::new(3, 8).unwrap();
    let (weight, bias) = (fc.weight.clone(), fc.bias.clone());
    // A layer of its own knows its own names.
    let e = fc.call(matrix(2, 4)).error().unwrap().clone();
    insta::assert_snapshot!(shown(e, FILE));
    let model = Sequential::new().named("fc", fc);
    let mut optimizer = Optimizer::new(model.parameters(), SGD::new()).unwrap();
    assert_eq!(weight.name().as_deref(), Some("fc.weight"));
    // A pending update still has the parameter's name.
    model.call(matrix(2, 3)).sum(()).backward().unwrap();
    weight.sub_(&(weight.grad().unwrap() * 0.1)).unwrap();
    let e = matrix(2, 4).matmul(weight.get()).error().unwrap().clone();
    insta::assert_snapshot!(shown(e, FILE));
    let e = weight.assign(matrix(2, 2)).unwrap_err();
    assert!(
        e.message()
            .starts_with("`fc.weight`, f32[8, 3] on cpu, can't hold f32[2, 2]"),
        "{e}"
    );
    let e = weight.set_grad(matrix(2, 2)).unwrap_err();
    assert!(
        e.message()
            .contains("the gradient of `fc.weight`, f32[8, 3]"),
        "{e}"
    );
    let e = optimizer.add_group([&weight], SGD::new()).unwrap_err();
    assert!(e.message().contains("fc.weight"), "{e}");
    // This holds for frozen parameters too, and inside compile.
    weight.requires_grad_(false).unwrap();
    weight.get().realize().unwrap();
    let e = matrix(2, 4)
        .matmul(weight.get())
        .error()
        .unwrap()
        .to_string();
    assert!(e.contains("operand 1: f32[8, 3], `fc.weight`"), "{e}");
    weight.requires_grad_(true).unwrap();
    let spec = kiln::Spec::like(matrix(2, 4)).unwrap();
    let e = kiln::compile(spec, |x| x.matmul(weight.get()))
        .unwrap_err()
        .to_string();
    assert!(e.contains("operand 1: f32[8, 3], `fc.weight`"), "{e}");
    // In a larger model, the name contains the path of the head.
    let whole = Sequential::new().named("body", model);
    whole.state_dict();
    assert_eq!(bias.unwrap().name().as_deref(), Some("body.fc.bias"));
}

#[test]
fn a_bad_label_or_index_names_the_sample_and_the_layer() {
    use kiln::nn::{CrossEntropyLoss, Embedding, Forward, Module};
    let logits = matrix(3, 4);
    let labels = Tensor::from([1i64, 7, -100]);
    let loss = CrossEntropyLoss::new().call((&logits, &labels));
    insta::assert_snapshot!(shown(loss.item::<f32>().unwrap_err(), FILE));
    let maps = matrix(2, 3 * 4).reshape([2, 3, 2, 2]);
    let labels = Tensor::from([[[0i64, 1], [2, 0]], [[1, 1], [0, 3]]]);
    let loss =
        maps.cross_entropy_with(&labels, CrossEntropy::new().reduction(kiln::Reduction::Sum));
    let e = loss.item::<f32>().unwrap_err().to_string();
    assert!(
        e.contains("index 3 is outside 0..3") && e.contains("target[1, 1, 1] is 3"),
        "{e}"
    );

    // Classes last, as language models have them.
    let last = matrix(2, 3 * 4).reshape([2, 3, 4]);
    let loss = last.cross_entropy(Tensor::from([[0i64; 3]; 2]));
    let e = loss.item::<f32>().unwrap_err();
    assert!(e.message().contains("input.movedim(-1, 1)"), "{e}");

    let table = Embedding::new(5, 2).unwrap();
    let tokens = Tensor::from([[0i64, 1], [2, 9], [9, 3]]);
    let e = table.call(&tokens).to_vec::<f32>().unwrap_err();
    insta::assert_snapshot!(shown(e, FILE));
    // The same in backward and step, and with smaller integers.
    let tokens = tokens.to_dtype(kiln::DType::I32);
    table.call(&tokens).sum(()).backward().unwrap();
    let e = table.parameters()[0]
        .grad()
        .unwrap()
        .to_vec::<f32>()
        .unwrap_err();
    assert_eq!(e.kind(), kiln::ErrorKind::Data);

    // In a compiled function, the arguments of the run are checked.
    let spec = kiln::Spec::new(kiln::DType::I64, ("batch", 2));
    let f = kiln::compile(spec, |x| table.call(&x)).unwrap();
    let e = f
        .run(Tensor::from([[0i64, 1], [-1, 3]]))
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("indices[1, 0] is -1") && e.contains("in Embedding(5, 2)"),
        "{e}"
    );

    // Negative indices are shown as they were given.
    let e = matrix(2, 3)
        .take(Tensor::from([5i64, -7]))
        .to_vec::<f32>()
        .unwrap_err();
    assert!(e.to_string().contains("index[1] is -7"), "{e}");
    let e = Tensor::from(9i64).one_hot(3).to_vec::<i64>().unwrap_err();
    assert!(e.to_string().contains("input is 9"), "{e}");
}

#[test]
fn a_bad_gradient_of_a_custom_function_names_the_function() {
    let x = matrix(2, 3).requires_grad_(true);
    let wrong = kiln::custom_function(|x: Tensor| (x.exp(), ()), |(), g: Tensor| g.sum(0));
    let y = wrong.apply(&x); // here
    let e = y.sum(()).backward().unwrap_err();
    assert!(e.to_string().contains("// here"), "{e}");
    insta::assert_snapshot!(shown(e, FILE));
    let wrong = kiln::custom_function(|x: Tensor| (x.exp(), ()), |(), g: Tensor| g.reshape([7]));
    let (y, line) = (wrong.apply(&x), line!());
    let e = y.sum(()).backward().unwrap_err();
    assert_eq!((e.op(), e.loc().line()), ("custom_function", line));
    assert!(
        e.message().contains("the gradient is invalid: reshape: "),
        "{e}"
    );
}

#[test]
fn sizes_that_differ_between_arguments_of_a_run() {
    let spec = || kiln::Spec::new(kiln::DType::F32, ("batch", 3));
    let f = kiln::compile([spec(), spec()], |[x, y]| &x + &y).unwrap();
    let e = f.run([&matrix(4, 3), &matrix(5, 3)]).unwrap_err();
    insta::assert_snapshot!(shown(e, FILE));
    let e = f.run([&matrix(4, 3), &matrix(4, 2)]).unwrap_err();
    assert!(
        e.message().contains("argument 1 must be f32[batch, 3]"),
        "{e}"
    );
}
