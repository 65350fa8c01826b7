//! Tests of the networks against torchvision's and those of the library `transformers`.

mod flops;
mod keys;
mod made;
mod parts;
mod reference;
mod results;
mod shapes;
mod text;
mod weights;
