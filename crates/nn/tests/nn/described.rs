//! Modules written with `module!`.

use crate::support::*;
use kiln_nn::*;
use kiln_tensor::{DType, Result, Tensor, Var};

module!(
    /// Every kind of field.
    #[derive(Clone)]
    struct Everything(width: usize, deep: bool, label: String) {
        /// A setting that is an argument.
        pub label: String,
        #[skip]
        pair: (f64, f64) = (0.5, width as f64),
        heads: usize = 4,
        scale: Var = Var::parameter(Tensor::full([width], pair.0, DType::F32)),
        #[buffer]
        seen: Var = Var::new(Tensor::zeros((), DType::I64)),
        extra: Option<Identity> = deep.then(Identity::new),
    }
);

module!(struct Tower(width: usize, levels: usize, deep: bool) {
    first: Linear = Linear::new(width, width),
    rest: ModuleList<Linear> = (0..levels).map(|_| Linear::with(width, width, LinearOptions::new().bias(false))).collect::<Result<_>>(),
    last: Option<Linear> = deep.then(|| Linear::new(width, 1)),
});

impl Forward for Tower {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let x = self
            .rest
            .iter()
            .fold(self.first.call(x), |x, layer| layer.call(x).relu());
        Ok(self.last.as_ref().map_or(x.clone(), |last| last.call(&x)))
    }
}

#[test]
fn fields_are_made_one_after_the_other() {
    let m = Everything::new(3, true, "three".to_string()).unwrap();
    assert_eq!((&m.label[..], m.pair, m.heads), ("three", (0.5, 3.0), 4));
    assert_eq!(held(&m.scale), [0.5; 3]);
    assert!(
        m.extra.is_some()
            && Everything::new(3, false, String::new())
                .unwrap()
                .extra
                .is_none()
    );
    assert_eq!(m.named_parameters()[0].0, "scale");
    assert_eq!(m.named_buffers()[0].0, "seen");
    assert_eq!(m.clone().scale.id(), m.scale.id());
}

#[test]
fn it_is_a_module_like_any_other() {
    let tower = Tower::new(4, 2, true).unwrap();
    let wanted = [
        "first.weight",
        "first.bias",
        "rest.0.weight",
        "rest.1.weight",
        "last.weight",
        "last.bias",
    ];
    assert_eq!(names(&tower), wanted);
    assert!(
        tower
            .to_string()
            .starts_with("Tower(\n  (first): Linear(in_features=4")
    );
    let x = Tensor::ones([2, 4], DType::F32);
    tower
        .register_forward_hook(|_, _, y| vec![&y[0] * 0.0])
        .unwrap();
    assert_eq!(values(&tower.call(&x)), [0.0; 2]);
    let copy = tower.deep_copy().unwrap();
    assert_eq!(copy.call(&x).shape().unwrap(), [2, 1]);
    assert_eq!(
        Tower::new(4, 0, false).unwrap().call(&x).shape().unwrap(),
        [2, 4]
    );
    let e = copy
        .call(Tensor::ones([2, 3], DType::F32))
        .error()
        .unwrap()
        .to_string();
    assert!(
        e.contains("in Tower()") && e.contains("in Linear(in_features=4"),
        "{e}"
    );
}

module!(struct Wrong() {
    fine: Linear = Linear::new(1, 1),
    wrong: Dropout = Dropout::new(1.5),
});

#[test]
fn the_first_error_of_a_part_is_that_of_the_whole_at_its_line() {
    let e = Wrong::new().err().unwrap().to_string();
    assert!(
        e.contains("the probability must lie in 0..=1, not 1.5"),
        "{e}"
    );
    assert!(
        e.contains("Dropout::new(1.5)") && e.contains("described.rs"),
        "{e}"
    );
}
