//! The attribute `#[autocast]`.

use crate::cells::{Method, ONCE, Operand};
use proc_macro2::{Group, Ident, TokenStream, TokenTree};
use quote::{format_ident, quote};
use syn::{Error, Result};

/// Expands a method so that inside `autocast` it casts its operands and calls itself. The arguments named in the
/// attribute are options that hold operands.
pub(crate) fn expand(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let mut head: Vec<TokenTree> = item.clone().into_iter().collect();
    let Some(TokenTree::Group(body)) = head.pop() else {
        return Err(Error::new_spanned(&item, "expected a method"));
    };
    let method: Method = syn::parse2(item.clone())?;
    let Some(arguments) = &method.arguments else {
        return Err(Error::new_spanned(&item, "expected a method of `&self`"));
    };
    let options: Vec<String> = options.into_iter().map(|t| t.to_string()).collect();
    let own = method.name.to_string();
    let full = own.strip_prefix(ONCE).unwrap_or(&own);
    let name = full.split("_with").next().unwrap_or(full);
    let name = name.strip_suffix("_dims").unwrap_or(name);
    // `_with_logits` is part of a name.
    let name = match full.contains("_with_logits") {
        true => format!("{name}_with_logits"),
        false => name.to_string(),
    };
    let (mut read, mut seen, mut cast, mut given) = (quote!(), quote!(), quote!(), quote!());
    for each in arguments {
        let argument = &each.name;
        let own: Ident = format_ident!("cast_{argument}");
        match each.operand() {
            Some((Operand::One, generic)) => {
                read.extend(quote!(let #argument: &crate::Tensor = &#argument.as_tensor();));
                seen.extend(quote!(tensors.push(#argument);));
                cast.extend(quote!(let #own = cast.of(#argument);));
                given.extend(match generic {
                    true => quote!(#own,),
                    false => quote!(&#own,),
                });
            }
            Some((Operand::Maybe, generic)) => {
                read.extend(quote!(let #argument = #argument.into_option();));
                seen.extend(quote!(tensors.extend(#argument.as_ref());));
                cast.extend(quote!(let #own = cast.maybe(#argument.as_ref());));
                given.extend(match generic {
                    true => quote!(#own,),
                    false => quote!(#own.as_ref(),),
                });
            }
            _ if options.contains(&argument.to_string()) => {
                seen.extend(
                    quote!(tensors.extend(crate::autocast::Castable::tensors(&#argument));),
                );
                cast.extend(quote!(let #own = crate::autocast::Castable::cast(#argument, &cast);));
                given.extend(quote!(#own,));
            }
            _ => given.extend(quote!(#argument,)),
        }
    }
    let (call, body_tokens) = (&method.name, body.stream());
    let new = quote! {
        #read
        if crate::autocast::is_autocast_enabled() {
            let mut tensors: Vec<&crate::Tensor> = vec![self];
            #seen
            if let Some(cast) = crate::autocast::begin(#name, &tensors) {
                let cast_self = cast.of(self);
                #cast
                let _inside = cast.enter();
                return cast_self.#call(#given);
            }
        }
        #body_tokens
    };
    head.push(TokenTree::Group(Group::new(body.delimiter(), new)));
    Ok(head.into_iter().collect())
}
