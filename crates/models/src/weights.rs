//! Weights published by torchvision.
#![allow(non_camel_case_types)] // torchvision's names

use kiln::nn::{LoadReport, Module, StateDict};
use kiln::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::panic::Location;
use std::path::{Path, PathBuf};

/// The address of torchvision's files.
const PAGE: &str = "https://download.pytorch.org/models/";

/// A published file of weights, and its reader. Nothing is downloaded: [`Weights::url`] and errors tell the file's
/// address.
///
/// ```no_run
/// use kiln_models::ResNet;
/// use kiln_models::weights::{ResNet18_Weights, checkpoints};
///
/// let model = ResNet::resnet18(1000)?;
/// ResNet18_Weights::IMAGENET1K_V1.load(&model, checkpoints())?;
/// # Ok::<(), kiln::Error>(())
/// ```
///
/// For another number of classes, load all but the last layer:
///
/// ```no_run
/// use kiln::nn::Module;
/// use kiln_models::ResNet;
/// use kiln_models::weights::{ResNet18_Weights, checkpoints};
///
/// let model = ResNet::resnet18(5)?;
/// let report = model.load_matching(&ResNet18_Weights::DEFAULT.state_dict(checkpoints())?)?;
/// assert_eq!(report.mismatched, ["fc.weight", "fc.bias"]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weights {
    name: &'static str,
    file: &'static str,
}

impl Weights {
    /// Describes a file whose name ends with the start of its SHA-256, `name-0123abcd.pth`, as in `torch.hub`.
    pub const fn new(name: &'static str, file: &'static str) -> Weights {
        Weights { name, file }
    }

    /// Returns torchvision's name of the weights: `ResNet18_Weights.IMAGENET1K_V1`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The file's name.
    pub fn file_name(&self) -> &'static str {
        self.file
    }

    /// The address of torchvision's file.
    pub fn url(&self) -> String {
        format!("{PAGE}{}", self.file)
    }

    /// The start of the file's SHA-256, which its name holds.
    pub fn sha256_prefix(&self) -> &'static str {
        let stem = self
            .file
            .rsplit_once('.')
            .map_or(self.file, |(stem, _)| stem);
        stem.rsplit_once('-').map_or("", |(_, hash)| hash)
    }

    /// Compares the checksum of the file in a folder, and returns its values under the names of models.
    ///
    /// # Errors
    /// If the file is missing (the error tells its address), its checksum differs, or it can't be read.
    #[track_caller]
    pub fn state_dict(&self, folder: impl AsRef<Path>) -> Result<StateDict> {
        let path = folder.as_ref().join(self.file);
        self.verify(&path)?;
        let state = StateDict::load(&path)?;
        Ok(state.rename(|name| Some(current_name(name))))
    }

    /// Loads the weights of the file in a folder into a model. Auxiliary heads that the model lacks are left out. Batch
    /// counts, which some files lack, keep their values.
    ///
    /// # Errors
    /// As [`Weights::state_dict`], or if the model differs in names or shapes; nothing is then changed.
    #[track_caller]
    pub fn load(&self, model: &impl Module, folder: impl AsRef<Path>) -> Result<LoadReport> {
        let state = self.state_dict(folder)?;
        let names = model.state_dict();
        let names: BTreeSet<&str> = names.names().collect();
        let file_names: BTreeSet<&str> = state.names().collect();
        let counted = |name: &str| name.ends_with(".num_batches_tracked");
        let aux = |name: &str| name.starts_with("aux") || name.starts_with("AuxLogits.");
        let missing = names.difference(&file_names).filter(|n| !counted(n));
        let missing = missing.map(|n| format!("{n}: missing"));
        let unexpected = file_names.difference(&names).filter(|n| !aux(n));
        let unexpected = unexpected.map(|n| format!("{n}: unexpected"));
        let problems: Vec<String> = missing.chain(unexpected).collect();
        if !problems.is_empty() {
            let title = format!("{} are not for {}", self.name, model.name());
            let error = Error::invalid("Weights::load", title);
            return Err(problems.into_iter().fold(error, Error::with_note));
        }
        model.load_state_dict(&state, false)
    }

    /// Compares the checksum of a file with the one in this file's name.
    ///
    /// # Errors
    /// If they differ, the file is missing, or can't be read.
    #[track_caller]
    pub fn verify(&self, path: &Path) -> Result<()> {
        let loc = Location::caller();
        let wrong = |message: String| Err(Error::new(ErrorKind::Value, "Weights", message, loc));
        let prefix = self.sha256_prefix();
        if prefix.len() < 8 || prefix.bytes().any(|b| !b.is_ascii_hexdigit()) {
            return wrong(format!("{} holds no checksum", self.file));
        }
        if !path.is_file() {
            return wrong(format!(
                "{} are not in {}: get them from {} and put them there",
                self.name,
                path.display(),
                self.url()
            ));
        }
        match sha256(path) {
            Ok(sum) if sum.starts_with(prefix) => Ok(()),
            Ok(sum) => wrong(format!(
                "{} is damaged, or is another file: its SHA-256 begins with {}, and not with {prefix}",
                path.display(),
                &sum[..prefix.len().min(sum.len())]
            )),
            Err(e) => wrong(format!("{}: {e}", path.display())),
        }
    }
}

/// Returns torchvision's folder for its files: `hub/checkpoints` in `$TORCH_HOME`, or in `torch` in `$XDG_CACHE_HOME`,
/// or in `.cache/torch` at home.
pub fn checkpoints() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home = || variable("HOME").unwrap_or_default().join(".cache");
    let cache = || {
        variable("XDG_CACHE_HOME")
            .unwrap_or_else(home)
            .join("torch")
    };
    let torch = variable("TORCH_HOME").unwrap_or_else(cache);
    torch.join("hub").join("checkpoints")
}

fn sha256(path: &Path) -> std::io::Result<String> {
    let (mut file, mut sum) = (File::open(path)?, Sha256::new());
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block)? {
            0 => break,
            n => sum.update(&block[..n]),
        }
    }
    Ok(sum.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// Returns the name in models of a tensor of a published file.
fn current_name(name: &str) -> String {
    // `denselayer1.norm.1.weight`
    if name.contains(".denselayer") {
        for part in ["norm", "conv"] {
            for i in ["1", "2"] {
                let old = format!(".{part}.{i}.");
                if name.contains(&old) {
                    return name.replace(&old, &format!(".{part}{i}."));
                }
            }
        }
    }
    name.replace(".mlp.linear_1.", ".mlp.0.")
        .replace(".mlp.linear_2.", ".mlp.3.")
}

/// The files of each model, the best one first.
macro_rules! published {
    (@file $ty:ident $name:ident $file:literal) => {
        #[doc = concat!("`", $file, "`.")]
        pub const $name: Weights =
            Weights::new(concat!(stringify!($ty), ".", stringify!($name)), $file);
    };
    ($($ty:ident $model:ident { $default:ident = $best:literal; $($name:ident = $file:literal;)* })*) => {
        $(
            #[doc = concat!("The weights of `", stringify!($model), "`.")]
            #[derive(Clone, Copy, Debug)]
            pub struct $ty;

            impl $ty {
                published!(@file $ty $default $best);
                $(published!(@file $ty $name $file);)*
                /// The best weights.
                pub const DEFAULT: Weights = $ty::$default;
            }
        )*

        /// All files, with torchvision's names of their models.
        pub const ALL: &[(&str, Weights)] = &[$(
            (stringify!($model), $ty::$default), $((stringify!($model), $ty::$name),)*
        )*];
    };
}

published! {
    AlexNet_Weights alexnet { IMAGENET1K_V1 = "alexnet-owt-7be5be79.pth"; }
    ConvNeXt_Tiny_Weights convnext_tiny { IMAGENET1K_V1 = "convnext_tiny-983f1562.pth"; }
    ConvNeXt_Small_Weights convnext_small { IMAGENET1K_V1 = "convnext_small-0c510722.pth"; }
    ConvNeXt_Base_Weights convnext_base { IMAGENET1K_V1 = "convnext_base-6075fbad.pth"; }
    ConvNeXt_Large_Weights convnext_large { IMAGENET1K_V1 = "convnext_large-ea097f82.pth"; }
    DenseNet121_Weights densenet121 { IMAGENET1K_V1 = "densenet121-a639ec97.pth"; }
    DenseNet161_Weights densenet161 { IMAGENET1K_V1 = "densenet161-8d451a50.pth"; }
    DenseNet169_Weights densenet169 { IMAGENET1K_V1 = "densenet169-b2777c0a.pth"; }
    DenseNet201_Weights densenet201 { IMAGENET1K_V1 = "densenet201-c1103571.pth"; }
    EfficientNet_B0_Weights efficientnet_b0 { IMAGENET1K_V1 = "efficientnet_b0_rwightman-7f5810bc.pth"; }
    EfficientNet_B1_Weights efficientnet_b1 {
        IMAGENET1K_V2 = "efficientnet_b1-c27df63c.pth";
        IMAGENET1K_V1 = "efficientnet_b1_rwightman-bac287d4.pth";
    }
    EfficientNet_B2_Weights efficientnet_b2 { IMAGENET1K_V1 = "efficientnet_b2_rwightman-c35c1473.pth"; }
    EfficientNet_B3_Weights efficientnet_b3 { IMAGENET1K_V1 = "efficientnet_b3_rwightman-b3899882.pth"; }
    EfficientNet_B4_Weights efficientnet_b4 { IMAGENET1K_V1 = "efficientnet_b4_rwightman-23ab8bcd.pth"; }
    EfficientNet_B5_Weights efficientnet_b5 { IMAGENET1K_V1 = "efficientnet_b5_lukemelas-1a07897c.pth"; }
    EfficientNet_B6_Weights efficientnet_b6 { IMAGENET1K_V1 = "efficientnet_b6_lukemelas-24a108a5.pth"; }
    EfficientNet_B7_Weights efficientnet_b7 { IMAGENET1K_V1 = "efficientnet_b7_lukemelas-c5b4e57e.pth"; }
    GoogLeNet_Weights googlenet { IMAGENET1K_V1 = "googlenet-1378be20.pth"; }
    Inception_V3_Weights inception_v3 { IMAGENET1K_V1 = "inception_v3_google-0cc3c7bd.pth"; }
    MobileNet_V2_Weights mobilenet_v2 {
        IMAGENET1K_V2 = "mobilenet_v2-7ebf99e0.pth";
        IMAGENET1K_V1 = "mobilenet_v2-b0353104.pth";
    }
    MobileNet_V3_Large_Weights mobilenet_v3_large {
        IMAGENET1K_V2 = "mobilenet_v3_large-5c1a4163.pth";
        IMAGENET1K_V1 = "mobilenet_v3_large-8738ca79.pth";
    }
    MobileNet_V3_Small_Weights mobilenet_v3_small { IMAGENET1K_V1 = "mobilenet_v3_small-047dcff4.pth"; }
    ResNet18_Weights resnet18 { IMAGENET1K_V1 = "resnet18-f37072fd.pth"; }
    ResNet34_Weights resnet34 { IMAGENET1K_V1 = "resnet34-b627a593.pth"; }
    ResNet50_Weights resnet50 {
        IMAGENET1K_V2 = "resnet50-11ad3fa6.pth";
        IMAGENET1K_V1 = "resnet50-0676ba61.pth";
    }
    ResNet101_Weights resnet101 {
        IMAGENET1K_V2 = "resnet101-cd907fc2.pth";
        IMAGENET1K_V1 = "resnet101-63fe2227.pth";
    }
    ResNet152_Weights resnet152 {
        IMAGENET1K_V2 = "resnet152-f82ba261.pth";
        IMAGENET1K_V1 = "resnet152-394f9c45.pth";
    }
    ResNeXt50_32X4D_Weights resnext50_32x4d {
        IMAGENET1K_V2 = "resnext50_32x4d-1a0047aa.pth";
        IMAGENET1K_V1 = "resnext50_32x4d-7cdf4587.pth";
    }
    ResNeXt101_32X8D_Weights resnext101_32x8d {
        IMAGENET1K_V2 = "resnext101_32x8d-110c445d.pth";
        IMAGENET1K_V1 = "resnext101_32x8d-8ba56ff5.pth";
    }
    ResNeXt101_64X4D_Weights resnext101_64x4d { IMAGENET1K_V1 = "resnext101_64x4d-173b62eb.pth"; }
    ShuffleNet_V2_X0_5_Weights shufflenet_v2_x0_5 { IMAGENET1K_V1 = "shufflenetv2_x0.5-f707e7126e.pth"; }
    ShuffleNet_V2_X1_0_Weights shufflenet_v2_x1_0 { IMAGENET1K_V1 = "shufflenetv2_x1-5666bf0f80.pth"; }
    ShuffleNet_V2_X1_5_Weights shufflenet_v2_x1_5 { IMAGENET1K_V1 = "shufflenetv2_x1_5-3c479a10.pth"; }
    ShuffleNet_V2_X2_0_Weights shufflenet_v2_x2_0 { IMAGENET1K_V1 = "shufflenetv2_x2_0-8be3c8ee.pth"; }
    SqueezeNet1_0_Weights squeezenet1_0 { IMAGENET1K_V1 = "squeezenet1_0-b66bff10.pth"; }
    SqueezeNet1_1_Weights squeezenet1_1 { IMAGENET1K_V1 = "squeezenet1_1-b8a52dc0.pth"; }
    VGG11_Weights vgg11 { IMAGENET1K_V1 = "vgg11-8a719046.pth"; }
    VGG11_BN_Weights vgg11_bn { IMAGENET1K_V1 = "vgg11_bn-6002323d.pth"; }
    VGG13_Weights vgg13 { IMAGENET1K_V1 = "vgg13-19584684.pth"; }
    VGG13_BN_Weights vgg13_bn { IMAGENET1K_V1 = "vgg13_bn-abd245e5.pth"; }
    VGG16_Weights vgg16 {
        IMAGENET1K_V1 = "vgg16-397923af.pth";
        IMAGENET1K_FEATURES = "vgg16_features-amdegroot-88682ab5.pth";
    }
    VGG16_BN_Weights vgg16_bn { IMAGENET1K_V1 = "vgg16_bn-6c64b313.pth"; }
    VGG19_Weights vgg19 { IMAGENET1K_V1 = "vgg19-dcbb9e9d.pth"; }
    VGG19_BN_Weights vgg19_bn { IMAGENET1K_V1 = "vgg19_bn-c79401a0.pth"; }
    ViT_B_16_Weights vit_b_16 {
        IMAGENET1K_V1 = "vit_b_16-c867db91.pth";
        IMAGENET1K_SWAG_E2E_V1 = "vit_b_16_swag-9ac1b537.pth";
        IMAGENET1K_SWAG_LINEAR_V1 = "vit_b_16_lc_swag-4e70ced5.pth";
    }
    ViT_B_32_Weights vit_b_32 { IMAGENET1K_V1 = "vit_b_32-d86f8d99.pth"; }
    ViT_L_16_Weights vit_l_16 {
        IMAGENET1K_V1 = "vit_l_16-852ce7e3.pth";
        IMAGENET1K_SWAG_E2E_V1 = "vit_l_16_swag-4f3808c9.pth";
        IMAGENET1K_SWAG_LINEAR_V1 = "vit_l_16_lc_swag-4d563306.pth";
    }
    ViT_L_32_Weights vit_l_32 { IMAGENET1K_V1 = "vit_l_32-c7638314.pth"; }
    Wide_ResNet50_2_Weights wide_resnet50_2 {
        IMAGENET1K_V2 = "wide_resnet50_2-9ba9bcbe.pth";
        IMAGENET1K_V1 = "wide_resnet50_2-95faca4d.pth";
    }
    Wide_ResNet101_2_Weights wide_resnet101_2 {
        IMAGENET1K_V2 = "wide_resnet101_2-d733dc28.pth";
        IMAGENET1K_V1 = "wide_resnet101_2-32ee1156.pth";
    }
}
