//! What PyTorch has and Kiln has not.

/// Names, and why they are not there.
pub(super) struct Missing {
    pub(super) torch: &'static [&'static str],
    pub(super) why: &'static str,
}

pub(super) const MISSING: &[Missing] = &[
    Missing {
        torch: &["torch.linalg.eig", "torch.linalg.eigvals"],
        why: "eigenvalues of matrices that are not symmetric are complex, and there are no complex numbers; `eigh` is for symmetric ones",
    },
    Missing {
        torch: &[
            "torch.fft.fft",
            "torch.fft.rfft",
            "torch.stft",
            "torch.complex",
            "torch.polar",
            "torch.view_as_complex",
        ],
        why: "there are no complex numbers",
    },
    Missing {
        torch: &["torch.sparse_coo_tensor", "torch.quantize_per_tensor"],
        why: "tensors are dense and hold plain numbers",
    },
    Missing {
        torch: &[
            "torch.nn.functional.ctc_loss",
            "torch.nn.functional.affine_grid",
            "torch.nn.functional.fractional_max_pool2d",
            "torch.nn.functional.gumbel_softmax",
            "torch.nn.functional.rrelu",
            "torch.cov",
            "torch.corrcoef",
            "torch.histogram",
            "torch.igamma",
            "torch.igammac",
            "torch.special.bessel_j0",
        ],
        why: "not written",
    },
    Missing {
        torch: &[
            "torch.nn.functional.fold",
            "torch.nn.functional.lp_pool2d",
            "torch.nn.functional.alpha_dropout",
        ],
        why: "the layers `Fold`, `LPPool2d` and `AlphaDropout` do it",
    },
    Missing {
        torch: &[
            "torch.autograd.functional.jacobian",
            "torch.autograd.functional.hessian",
            "torch.func.vmap",
        ],
        why: "not written",
    },
    Missing {
        torch: &["torch.while_loop"],
        why: "a recorded loop has a number of steps; see `scan`",
    },
];
