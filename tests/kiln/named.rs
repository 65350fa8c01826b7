//! Named dims: they replace numbers, follow operations, and are checked.

use kiln::{DType, Tensor, Var, cat, keep};

fn images() -> Tensor {
    Tensor::arange(0.0, 120.0, 1.0)
        .reshape([2, 3, 4, 5])
        .refine_names(["N", "C", "H", "W"])
}

#[track_caller]
fn assert_names(t: &Tensor, names: &[&str]) {
    let found: Vec<&str> = t.names().into_iter().map(|n| n.unwrap_or("_")).collect();
    assert!(t.error().is_none(), "{t}");
    assert_eq!(found, names);
    assert_eq!(t.ndim(), names.len());
}

#[test]
fn a_name_stands_for_its_number() {
    let (x, plain) = (images(), images().drop_names());
    let same = |a: Tensor, b: Tensor| {
        assert_eq!(a.shape().unwrap(), b.shape().unwrap());
        assert_eq!(a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
    };
    same(x.sum("C"), plain.sum(1));
    same(x.mean(keep(["H", "W"])), plain.mean(keep([2, 3])));
    same(x.select("C", 0), plain.select(1, 0));
    same(x.softmax("C"), plain.softmax(1));
    same(x.narrow("W", 1, 2), plain.narrow(3, 1, 2));
    same(x.transpose("H", "W"), plain.transpose(2, 3));
    same(x.permute(["W", "N", "C", "H"]), plain.permute([3, 0, 1, 2]));
    same(x.flatten(("C", "W")), plain.flatten((1, 3)));
    same(x.max("W").0, plain.max(3).0);
    same(x.var_with("N", 0.0), plain.var_with(0, 0.0));
    same(cat(&[&x, &x], "H"), cat(&[&plain, &plain], 2));
    same(x.unbind("N")[1].clone(), plain.unbind(0)[1].clone());
    let index = |t: Tensor| t.to_dtype(DType::F32);
    same(index(x.argmax("C")), index(plain.argmax(1)));
    same(x.flip("W"), plain.flip(3));
    let e = x.sum("D").realize().unwrap_err();
    assert!(
        e.message()
            .contains("no dim of f32[2, 3, 4, 5] is named \"D\""),
        "{e}"
    );
    assert!(e.message().contains("('N', 'C', 'H', 'W')"), "{e}");
    assert!(e.to_string().contains("named.rs"), "{e}");
}

#[test]
fn names_follow_operations() {
    let x = images();
    assert_names(&x.exp(), &["N", "C", "H", "W"]);
    assert_names(&(&x * 2.0), &["N", "C", "H", "W"]);
    assert_names(&x.gt(3.0), &["N", "C", "H", "W"]);
    assert_names(&x.to_dtype(DType::F64), &["N", "C", "H", "W"]);
    assert_names(&x.sum("C"), &["N", "H", "W"]);
    assert_names(&x.sum(keep("C")), &["N", "C", "H", "W"]);
    assert_names(&x.std(["H", "W"]), &["N", "C"]);
    assert_names(&x.max("C").0, &["N", "H", "W"]);
    assert_names(&x.max(keep("C")).1, &["N", "C", "H", "W"]);
    assert_names(&x.argmax(keep("C")), &["N", "C", "H", "W"]);
    assert_names(&x.softmax("C"), &["N", "C", "H", "W"]);
    assert_names(&x.permute([3, 0, 1, 2]), &["W", "N", "C", "H"]);
    assert_names(&x.select("C", 0), &["N", "H", "W"]);
    assert_names(&x.unsqueeze(1), &["N", "_", "C", "H", "W"]);
    assert_names(&x.i((0, .., 1..3)), &["C", "H", "W"]);
    assert_names(&x.i((.., [2, 0, 2])), &["N", "C", "H", "W"]);
    assert_names(&x.narrow(0, 0, 1).squeeze("N"), &["C", "H", "W"]);
    assert_names(&x.flatten(("C", "W")), &["N", "_"]);
    assert_names(&cat(&[&x, &x], 0), &["N", "C", "H", "W"]);
    assert_names(&x.clone(), &["N", "C", "H", "W"]);
    // Operations that can't tell their dims drop the names.
    assert_names(&x.reshape([2, 3, 20]), &["_", "_", "_"]);
    assert_names(&x.i((.., [0, 1], [0, 1])), &["_", "_", "_"]);
    // Cells hold values, not names.
    let cell = Var::new(&x).unwrap();
    assert_names(&cell.get(), &["_", "_", "_", "_"]);
    // Names stay on the handle when values are computed.
    x.realize().unwrap();
    assert_names(&x, &["N", "C", "H", "W"]);
}

#[test]
fn aligned_dims_unify() {
    let x = images();
    let scale = Tensor::ones([3, 1, 1], DType::F32).refine_names([Some("C"), None, None]);
    assert_names(&(&x * &scale), &["N", "C", "H", "W"]);
    assert_names(&(&x + Tensor::ones([5], DType::F32)), &["N", "C", "H", "W"]);
    let message = |t: Tensor| {
        let e = t.realize().unwrap_err();
        assert!(e.to_string().contains("named.rs"), "{e}");
        e.message().to_string()
    };
    let wrong = message(&x * Tensor::ones([5], DType::F32).refine_names(["C"]));
    assert!(
        wrong.contains("\"C\" stands at different places"),
        "{wrong}"
    );
    let wrong = message(&x * Tensor::ones([5], DType::F32).refine_names(["D"]));
    assert!(wrong.contains("\"W\" and \"D\" of dim 3 differ"), "{wrong}");
    let per_channel = Tensor::ones([3], DType::F32).refine_names(["C"]);
    let aligned = per_channel.align_as(&x);
    assert_eq!(aligned.shape().unwrap(), [1, 3, 1, 1]);
    assert_names(&(&x * &aligned), &["N", "C", "H", "W"]);
}

#[test]
fn products_take_names_from_the_dims_that_stay() {
    let named =
        |shape: [usize; 2], names: [&str; 2]| Tensor::ones(shape, DType::F32).refine_names(names);
    let (x, w) = (named([2, 3], ["N", "I"]), named([3, 4], ["I", "O"]));
    assert_names(&x.matmul(&w), &["N", "O"]);
    assert_names(&x.matmul(w.select("O", 0)), &["N"]);
    assert_names(&x.select("N", 0).matmul(&w), &["O"]);
    // If two dims would have the same name, both lose it.
    assert_names(&x.matmul(x.t()), &["_", "_"]);
    let batched = Tensor::ones([5, 2, 3], DType::F32).refine_names(["B", "N", "I"]);
    assert_names(&batched.matmul(&w), &["B", "N", "O"]);
    // Composites that know nothing of names still work.
    for t in [
        kiln::cdist(&x, &x),
        x.pdist(),
        kiln::einsum("ni,io->no", &[&x, &w]),
        x.cosine_similarity(&x),
        x.layer_norm([3]),
        x.select("N", 0).outer(x.select("N", 1)),
        x.roll(1, "I"),
        x.tril(),
    ] {
        assert!(t.error().is_none(), "{t}");
    }
}

#[test]
fn names_are_given_changed_and_aligned() {
    let x = Tensor::ones([2, 3, 4], DType::F32);
    assert_names(&x, &["_", "_", "_"]);
    let part = x.refine_names(["...", "W"]);
    assert_names(&part, &["_", "_", "W"]);
    assert_names(&part.refine_names(["N", "C", "W"]), &["N", "C", "W"]);
    let message = |t: Tensor| t.realize().unwrap_err().message().to_string();
    assert!(message(part.refine_names(["N", "C", "H"])).contains("use rename"));
    assert!(message(part.refine_names([Some("N"), None, None])).contains("use rename"));
    assert!(message(x.refine_names(["N", "C"])).contains("2 names do not fit"));
    assert!(message(x.refine_names(["N", "N", "C"])).contains("appears twice"));
    assert_names(&part.rename(["N", "...", "H"]), &["N", "_", "H"]);
    assert_names(&part.drop_names(), &["_", "_", "_"]);

    let x = x.refine_names(["C", "H", "N"]);
    let aligned = x.align_to(["N", "C", "D", "H"]);
    assert_names(&aligned, &["N", "C", "D", "H"]);
    assert_eq!(aligned.shape().unwrap(), [4, 2, 1, 3]);
    assert_names(&x.align_to(["N", "..."]), &["N", "C", "H"]);
    assert!(message(x.align_to(["N", "C"])).contains("is not in"));
    assert!(message(part.align_to(["N", "W", "H"])).contains("needs a name"));
}

#[test]
fn names_never_enter_the_program() {
    let x = Tensor::arange(0.0, 6.0, 1.0).reshape([2, 3]);
    x.realize().unwrap();
    let named = x.refine_names(["A", "B"]);
    let [plain, named] = [(x, 1.into()), (named, kiln::DimArg::from("B"))]
        .map(|(t, dim)| kiln::explain((&t * 3.0).softmax(dim)).unwrap().to_string());
    assert_eq!(plain, named);
}
