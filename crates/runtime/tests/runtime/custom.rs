//! Plans that call registered operators, with nothing above the runtime.

use crate::build::plan_of;
use kiln_base::{DType, Dim};
use kiln_plan::{self as plan, Array, Kernel, Plan};
use kiln_runtime::{Buffer, Error, Executable, custom_ops};
use std::sync::Arc;

/// A plan of `out[2, 1] = f(x[3], mask[2])`.
fn plan(name: &str) -> Plan {
    let array = |arg, dtype, shape: &[i64]| Array {
        arg,
        dtype,
        shape: shape.iter().map(|d| Dim::Const(*d)).collect(),
    };
    let custom = plan::Custom {
        name: name.into(),
        kernel: None,
        operands: vec![
            array(0, DType::F32, &[3]),
            array(1, DType::Bool, &[2]),
            array(0, DType::F32, &[1, 3]),
        ],
        out: array(2, DType::F64, &[2, 1]),
    };
    let args = [
        (DType::F32, 3, false),
        (DType::Bool, 2, false),
        (DType::F64, 2, true),
    ];
    plan_of(Kernel::Custom(custom), &args)
}

fn run(executable: &Executable) -> kiln_runtime::Result<Vec<f64>> {
    let x = Buffer::from_slice(&[1.0f32, 2.0, 4.0], &[3])?;
    let mask = Buffer::from_slice(&[false, true], &[2])?;
    executable.run(&mut [x, mask], &[])?[0].to_vec()
}

#[test]
fn a_kernel_sees_its_operands_as_they_are_shaped() {
    custom_ops::register("runtime::sums", |inputs, output| {
        let [x, mask, again] = inputs else {
            return Err("three operands".into());
        };
        assert_eq!(
            (x.shape(), mask.shape(), again.shape()),
            (&[3][..], &[2][..], &[1, 3][..])
        );
        assert_eq!((output.shape(), output.dtype()), (&[2, 1][..], DType::F64));
        let sum: f32 = x.as_slice::<f32>()?.iter().sum();
        let mask = mask.as_slice::<bool>()?;
        for (y, on) in output.as_mut_slice::<f64>()?.iter_mut().zip(mask) {
            assert_eq!(*y, 0.0);
            *y = if *on { f64::from(sum) } else { -1.0 };
        }
        Ok(())
    })
    .unwrap();
    let bytes = plan("runtime::sums").to_bytes();
    let executable = Executable::new(Plan::from_bytes(&bytes).unwrap()).unwrap();
    for _ in 0..3 {
        assert_eq!(run(&executable).unwrap(), [-1.0, 7.0]);
    }
}

#[test]
fn failures_are_told() {
    custom_ops::register("runtime::fails", |_, _| Err("nothing doing".into())).unwrap();
    custom_ops::register("runtime::panics", |_, _| panic!("so {}", "what")).unwrap();
    for (name, wanted) in [
        ("fails", "nothing doing"),
        ("panics", "its kernel panicked: so what"),
    ] {
        let executable = Executable::new(plan(&format!("runtime::{name}"))).unwrap();
        for _ in 0..2 {
            match run(&executable).unwrap_err() {
                Error::Custom { op, text, node } => {
                    assert_eq!((op.as_str(), text.as_str(), node), ("op0", wanted, 10));
                }
                other => panic!("{other}"),
            }
        }
    }
    let twice = custom_ops::register("runtime::fails", |_, _| Ok(()));
    assert!(twice.unwrap_err().contains("registered already"));
    assert!(custom_ops::register("", |_, _| Ok(())).is_err());
    let missing = Executable::new(plan("runtime::nobody")).unwrap_err();
    assert!(matches!(&missing, Error::NotRegistered(text) if text.contains("`runtime::nobody`")));
}

#[test]
fn damaged_calls_are_refused() {
    custom_ops::register("runtime::any", |_, _| Ok(())).unwrap();
    let damages: [fn(&mut plan::Custom); 7] = [
        |c| c.operands[0].arg = 9,
        |c| c.operands[0].dtype = DType::F64,
        |c| c.operands[0].shape = vec![Dim::Const(4)],
        |c| c.operands[1].shape = vec![Dim::Const(-2), Dim::Const(-1)],
        |c| c.out.shape = vec![Dim::Const(3)],
        |c| c.out.arg = 0,
        |c| c.out.dtype = DType::I64,
    ];
    for (i, damage) in damages.iter().enumerate() {
        let mut plan = plan("runtime::any");
        if let Kernel::Custom(c) = Arc::make_mut(&mut plan.kernels[0]) {
            damage(c);
        }
        let e = Executable::new(plan).err();
        assert!(matches!(e, Some(Error::Plan(_))), "damage {i}: {e:?}");
    }
    let mut plan = plan("runtime::any");
    plan.run[0].sites.clear();
    assert!(matches!(Executable::new(plan), Err(Error::Plan(_))));
}
