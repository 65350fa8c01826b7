//! Calls stay on the device of their operands, for any default device.

use super::calls::*;
use kiln_runtime::cuda;
use kiln_tensor::{DType, Device, Tensor, set_device};

#[test]
fn what_is_called_on_the_cpu_stays_there() {
    cuda::set_driver(kiln_fake_cuda::library());
    let gpu = Device::cuda(0).unwrap();
    let rand = |shape: &[usize]| Tensor::rand(shape, DType::F64).realize().unwrap().clone();
    let ints = Tensor::from([[0i64, 1, 1], [1, 0, 2], [0, 2, 1]]);
    let operands = [
        (rand(&[3, 3]), rand(&[3, 3])),
        (rand(&[3, 3]), ints),
        (rand(&[2, 4, 6, 6]), rand(&[4, 4, 3, 3])),
        (rand(&[2, 4, 5, 6, 6]), rand(&[4, 4, 3, 3, 3])),
        (rand(&[2, 5]), Tensor::from([1i64, 3])),
        (rand(&[6]), rand(&[6])),
        (rand(&[2, 0]), rand(&[2, 0])),
    ];
    let (mut called, mut wrong) = (0, Vec::new());
    for (x, y) in &operands {
        for group in OPERATORS {
            for row in 0.. {
                let Some((code, here)) = group(row, x, y) else {
                    break;
                };
                if code.starts_with("x.to(") {
                    continue;
                }
                let right = |all: &Vec<Tensor>| all.iter().all(|t| t.error().is_none());
                if !here.is_ok_and(|all| right(&all)) {
                    continue;
                }
                called += 1;
                let _elsewhere = set_device(gpu);
                match group(row, x, y) {
                    Some((_, Ok(all))) if right(&all) => {
                        let moved = all.iter().filter(|t| t.device() != Device::Cpu);
                        wrong.extend(moved.map(|t| (code, format!("on {}", t.device()))));
                    }
                    Some((_, Ok(all))) => {
                        let errors = all.iter().filter_map(Tensor::error);
                        wrong.extend(errors.map(|e| (code, e.to_string())));
                    }
                    Some((_, Err(e))) => wrong.push((code, e.to_string())),
                    None => wrong.push((code, "is gone".into())),
                }
            }
        }
    }
    assert!(called > 1000, "only {called} calls");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
