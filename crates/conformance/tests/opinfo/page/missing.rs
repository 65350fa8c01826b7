//! Names of PyTorch that Kiln lacks.

/// Names, and the reason why they are missing.
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
        why: "tensors are dense and hold plain numbers (quantised ones are bytes beside their scale)",
    },
    Missing {
        torch: &[
            "torch.nn.functional.affine_grid",
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
        torch: &["torch.nn.functional.fold", "torch.nn.functional.lp_pool2d"],
        why: "the layers `Fold` and `LPPool2d` do it",
    },
    Missing {
        torch: &["torch.func.vmap"],
        why: "not written",
    },
    Missing {
        torch: &[
            "torch.nn.UpsamplingBilinear2d",
            "torch.nn.UpsamplingNearest2d",
        ],
        why: "`Upsample` does it",
    },
    Missing {
        torch: &["torch.nn.TripletMarginWithDistanceLoss"],
        why: "the function `triplet_margin_with_distance_loss` does it",
    },
    Missing {
        torch: &["torch.nn.SyncBatchNorm"],
        why: "a process trains on its own",
    },
    Missing {
        torch: &["torch.nn.CrossMapLRN2d", "torch.nn.LinearCrossEntropyLoss"],
        why: "not written",
    },
    Missing {
        torch: &["torch.optim.Muon", "torch.optim.SparseAdam"],
        why: "not written; a `Rule` of your own is one",
    },
    Missing {
        torch: &["torch.optim.lr_scheduler.ChainedScheduler"],
        why: "`Scheduler::chained` does it",
    },
];
