//! Convolutions and their transposes, against sums over windows.

use crate::support::{assert_close, check_gradients, f64_module, held, random, values};
use kiln_nn::*;
use kiln_tensor::{PadMode, Padding};

/// The settings of a convolution of one sample `[c, h, w]`.
struct Conv<'a> {
    weight: &'a [f64],
    bias: &'a [f64],
    channels: (usize, usize),
    groups: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

impl Conv<'_> {
    fn of(&self, x: &[f64], [h, w]: [usize; 2]) -> Vec<f64> {
        let (c, o) = self.channels;
        let (cg, og) = (c / self.groups, o / self.groups);
        let extent = |n: usize, a: usize| {
            (n + 2 * self.padding[a] - self.dilation[a] * (self.kernel[a] - 1) - 1) / self.stride[a]
                + 1
        };
        let mut out = Vec::new();
        for oc in 0..o {
            for i in 0..extent(h, 0) {
                for j in 0..extent(w, 1) {
                    let mut sum = self.bias[oc];
                    for ic in 0..cg {
                        for ki in 0..self.kernel[0] {
                            for kj in 0..self.kernel[1] {
                                let at = |i: usize, k: usize, a: usize| {
                                    (i * self.stride[a] + k * self.dilation[a])
                                        .checked_sub(self.padding[a])
                                };
                                let (Some(y), Some(z)) = (at(i, ki, 0), at(j, kj, 1)) else {
                                    continue;
                                };
                                if y < h && z < w {
                                    let channel = oc / og * cg + ic;
                                    let k = ((oc * cg + ic) * self.kernel[0] + ki) * self.kernel[1]
                                        + kj;
                                    sum += x[(channel * h + y) * w + z] * self.weight[k];
                                }
                            }
                        }
                    }
                    out.push(sum);
                }
            }
        }
        out
    }
}

#[test]
fn convolutions_are_sums_over_windows() {
    for (groups, stride, padding, dilation) in [
        (1, [1, 1], [0, 0], [1, 1]),
        (2, [2, 1], [1, 2], [1, 2]),
        (1, [1, 3], [2, 0], [2, 1]),
    ] {
        let layer = f64_module(|| {
            Conv2d::new(
                4,
                6,
                Kernel::new([3, 2])
                    .groups(groups)
                    .stride(stride)
                    .padding(padding)
                    .dilation(dilation),
            )
        });
        let x = random([4, 7, 9]);
        let naive = Conv {
            weight: &held(&layer.weight),
            bias: &held(layer.bias.as_ref().unwrap()),
            channels: (4, 6),
            groups,
            kernel: [3, 2],
            stride,
            padding,
            dilation,
        };
        assert_close(
            &values(&layer.call(&x)),
            &naive.of(&values(&x), [7, 9]),
            1e-12,
        );
        let batch = x.unsqueeze(0);
        check_gradients(&layer, &|| layer.call(&batch));
    }
}

#[test]
fn convolutions_of_other_ranks_are_those_of_planes_with_unit_dims() {
    let line = f64_module(|| Conv1d::new(3, 2, Kernel::new(3).stride(2).padding(1)));
    let plane =
        f64_module(|| Conv2d::new(3, 2, Kernel::new([1, 3]).stride([1, 2]).padding([0, 1])));
    let space = f64_module(|| {
        Conv3d::new(
            3,
            2,
            Kernel::new([1, 1, 3]).stride([1, 1, 2]).padding([0, 0, 1]),
        )
    });
    plane
        .weight
        .assign(line.weight.get().detach().unsqueeze(2))
        .unwrap();
    space
        .weight
        .assign(plane.weight.get().detach().unsqueeze(2))
        .unwrap();
    let bias = line.bias.as_ref().unwrap().get().detach();
    plane.bias.as_ref().unwrap().assign(&bias).unwrap();
    space.bias.as_ref().unwrap().assign(&bias).unwrap();
    let x = random([2, 3, 11]);
    let y = values(&line.call(&x));
    assert_close(&values(&plane.call(x.unsqueeze(2))), &y, 1e-12);
    assert_close(&values(&space.call(x.unsqueeze(2).unsqueeze(2))), &y, 1e-12);
}

#[test]
fn padding_modes_pad_before_the_convolution() {
    let x = random([1, 2, 5, 6]);
    for mode in [PadMode::Reflect, PadMode::Replicate, PadMode::Circular] {
        let layer =
            f64_module(|| Conv2d::new(2, 3, Kernel::new(3).padding([1, 2]).padding_mode(mode)));
        let plain = f64_module(|| Conv2d::new(2, 3, 3));
        plain.load_state_dict(&layer.state_dict(), true).unwrap();
        let wanted = plain.call(x.pad([2, 2, 1, 1], mode));
        assert_close(&values(&layer.call(&x)), &values(&wanted), 1e-12);
    }
    let options = Kernel::new([4, 3]).padding(Padding::Same);
    let same = f64_module(|| Conv2d::new(2, 3, options.clone()));
    assert_eq!(same.call(&x).shape().unwrap(), [1, 3, 5, 6]);
    let same = f64_module(|| Conv2d::new(2, 3, options.padding_mode(PadMode::Circular)));
    assert_eq!(same.call(&x).shape().unwrap(), [1, 3, 5, 6]);
    assert!(
        same.to_string()
            .ends_with("padding=same, padding_mode=circular)"),
        "{same}"
    );
}

#[test]
fn transposed_convolutions_are_the_adjoints_of_convolutions() {
    for groups in [1, 2] {
        let conv = f64_module(|| {
            Conv2d::new(
                4,
                6,
                Kernel::new(3)
                    .groups(groups)
                    .bias(false)
                    .stride(2)
                    .padding(1)
                    .dilation(2),
            )
        });
        let back = f64_module(|| {
            ConvTranspose2d::new(
                6,
                4,
                TransposedKernel::new(3)
                    .groups(groups)
                    .bias(false)
                    .stride(2)
                    .padding(1)
                    .dilation(2)
                    .output_padding([0, 1]),
            )
        });
        assert_eq!(conv.weight.shape().unwrap(), back.weight.shape().unwrap());
        back.weight.assign(conv.weight.get().detach()).unwrap();
        let x = random([2, 4, 9, 10]);
        let y = conv.call(&x);
        let u = random(y.shape().unwrap());
        let x2 = back.call(&u);
        assert_eq!(x2.shape().unwrap(), x.shape().unwrap());
        let left = (&y * &u).sum(()).item::<f64>().unwrap();
        let right = (&x * &x2).sum(()).item::<f64>().unwrap();
        assert_close(&[left], &[right], 1e-10);
    }
    let line = f64_module(|| ConvTranspose1d::new(2, 3, TransposedKernel::new(3).stride(2)));
    let x = random([1, 2, 4]);
    assert_eq!(line.call(&x).shape().unwrap(), [1, 3, 9]);
    check_gradients(&line, &|| line.call(&x));
    let space = f64_module(|| ConvTranspose3d::new(1, 2, 2));
    assert_eq!(
        space.call(random([1, 1, 2, 3, 4])).shape().unwrap(),
        [1, 2, 3, 4, 5]
    );
}
