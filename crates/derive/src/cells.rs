//! The attribute `#[on_cells]`.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Generics, Ident, Result, ReturnType, Token, Type, Visibility, parenthesized};

/// A method.
pub(crate) struct Method {
    attributes: Vec<Group>,
    visibility: Visibility,
    pub(crate) name: Ident,
    generics: Generics,
    /// All arguments as they are written in the source.
    written: TokenStream,
    /// The arguments after `&self`; `None` if there is no `&self`.
    pub(crate) arguments: Option<Vec<Argument>>,
    output: ReturnType,
    body: Group,
}

/// An argument of a method.
pub(crate) struct Argument {
    mutable: Option<Token![mut]>,
    pub(crate) name: Ident,
    pub(crate) ty: Type,
}

/// The kinds of operands that methods take.
#[derive(Copy, Clone, PartialEq)]
pub(crate) enum Operand {
    /// `impl AsTensor`, or `&Tensor` in the copy that is compiled once.
    One,
    /// `impl MaybeTensor`, or `Option<&Tensor>` in that copy.
    Maybe,
}

impl Argument {
    /// Returns the kind of operand, if the argument is one, and true if its type is generic.
    pub(crate) fn operand(&self) -> Option<(Operand, bool)> {
        let ty = &self.ty;
        match quote!(#ty).to_string().as_str() {
            "impl AsTensor" => Some((Operand::One, true)),
            "impl MaybeTensor" => Some((Operand::Maybe, true)),
            "& crate :: Tensor" => Some((Operand::One, false)),
            "Option < & crate :: Tensor >" => Some((Operand::Maybe, false)),
            _ => None,
        }
    }

    /// The `T` of an `impl Into<T>`.
    fn converted(&self) -> Option<TokenStream> {
        let ty = &self.ty;
        let mut tokens = quote!(#ty).into_iter().peekable();
        for word in ["impl", "Into", "<"] {
            tokens.next_if(|t| t.to_string() == word)?;
        }
        let mut inner: Vec<TokenTree> = tokens.collect();
        inner.pop()?;
        Some(inner.into_iter().collect())
    }
}

/// The prefix of the name of the copy of a method that is compiled once.
pub(crate) const ONCE: &str = "once_";

impl Parse for Method {
    fn parse(input: ParseStream<'_>) -> Result<Method> {
        let mut attributes = Vec::new();
        while input.parse::<Option<Token![#]>>()?.is_some() {
            attributes.push(input.parse()?);
        }
        let visibility: Visibility = input.parse()?;
        input.parse::<Token![fn]>()?;
        let (name, mut generics) = (input.parse()?, input.parse::<Generics>()?);
        let content;
        parenthesized!(content in input);
        let written: TokenStream = content.fork().parse()?;
        let receiver = content.peek(Token![&]) && content.peek2(Token![self]);
        let mut arguments = Vec::new();
        if receiver {
            content.parse::<Token![&]>()?;
            content.parse::<Token![self]>()?;
            while content.parse::<Option<Token![,]>>()?.is_some() && !content.is_empty() {
                let (mutable, name) = (content.parse()?, content.parse()?);
                content.parse::<Token![:]>()?;
                let ty = content.parse()?;
                arguments.push(Argument { mutable, name, ty });
            }
        }
        content.parse::<TokenStream>()?;
        let output = input.parse()?;
        generics.where_clause = input.parse()?;
        Ok(Method {
            attributes,
            visibility,
            name,
            generics,
            written,
            arguments: receiver.then_some(arguments),
            output,
            body: input.parse()?,
        })
    }
}

impl Method {
    /// Returns the attributes with these names, which may come from macros.
    fn attributes(&self, names: &[&str]) -> TokenStream {
        let named = |g: &&Group| {
            let text = g.stream().to_string();
            names.iter().any(|name| text.starts_with(name))
        };
        let chosen = self.attributes.iter().filter(named);
        quote!(#(# #chosen)*)
    }

    /// Returns the method. If it takes operands of any type, it becomes a shell around a private method that takes
    /// tensors, so that crates that call it do not compile its body again.
    fn shell(&self) -> TokenStream {
        let Method {
            attributes,
            visibility,
            name,
            generics,
            written,
            output,
            body,
            ..
        } = self;
        let bounds = &generics.where_clause;
        let whole = quote! {
            #(# #attributes)* #visibility fn #name #generics(#written) #output #bounds #body
        };
        let Some(arguments) = &self.arguments else {
            return whole;
        };
        if !arguments
            .iter()
            .any(|a| a.operand().is_some() || a.converted().is_some())
        {
            return whole;
        }
        let once = format_ident!("{ONCE}{name}");
        let (mut read, mut given, mut taken) = (quote!(), quote!(), quote!());
        for argument in arguments {
            let Argument { mutable, name, ty } = argument;
            match argument.operand() {
                Some((Operand::One, _)) => {
                    read.extend(quote!(let #name = #name.as_tensor();));
                    given.extend(quote!(&#name,));
                    taken.extend(quote!(#mutable #name: &crate::Tensor,));
                }
                Some((Operand::Maybe, _)) => {
                    read.extend(quote!(let #name = #name.into_option();));
                    given.extend(quote!(#name.as_ref(),));
                    taken.extend(quote!(#mutable #name: Option<&crate::Tensor>,));
                }
                None => match argument.converted() {
                    Some(ty) => {
                        given.extend(quote!(crate::operand::Converted::<#ty>::of(#name),));
                        taken.extend(quote!(#mutable #name: crate::operand::Converted<#ty>,));
                    }
                    None => {
                        given.extend(quote!(#name,));
                        taken.extend(quote!(#mutable #name: #ty,));
                    }
                },
            }
        }
        let outside = self.attributes(&["doc", "track_caller", "cfg", "must_use", "allow"]);
        let inside = self.attributes(&["autocast", "track_caller", "cfg", "allow"]);
        let declared = arguments
            .iter()
            .map(|Argument { name, ty, .. }| quote!(#name: #ty));
        quote! {
            #outside #visibility fn #name #generics(&self, #(#declared),*) #output #bounds {
                #read
                self.#once(#given)
            }
            #inside fn #once #generics(&self, #taken) #output #bounds #body
        }
    }
}

/// The methods of an impl.
struct Methods(Vec<Method>);

impl Parse for Methods {
    fn parse(input: ParseStream<'_>) -> Result<Methods> {
        let mut methods = Vec::new();
        while !input.is_empty() {
            methods.push(input.parse()?);
        }
        Ok(Methods(methods))
    }
}

/// Expands the impl, and adds one for `Var` with its public methods that take `&self`.
pub(crate) fn expand(item: TokenStream) -> Result<TokenStream> {
    let mut head: Vec<TokenTree> = item.clone().into_iter().collect();
    let body = match head.pop() {
        Some(TokenTree::Group(body)) if body.delimiter() == Delimiter::Brace => body,
        _ => {
            return Err(syn::Error::new_spanned(
                &item,
                "expected `impl Tensor { .. }`",
            ));
        }
    };
    let Methods(methods) = syn::parse2(body.stream())?;
    let shells = methods.iter().map(Method::shell);
    let mut forwarded = TokenStream::new();
    let public = |m: &&Method| matches!(m.visibility, Visibility::Public(_));
    for method in methods.iter().filter(public) {
        let Method {
            name,
            generics,
            output,
            ..
        } = method;
        let Some(arguments) = &method.arguments else {
            continue;
        };
        let cfg = method.attributes(&["cfg"]);
        let names = arguments.iter().map(|a| &a.name);
        let declared = arguments
            .iter()
            .map(|Argument { name, ty, .. }| quote!(#name: #ty));
        let doc = format!("[`Tensor::{name}`] of what the cell holds.");
        let bounds = &generics.where_clause;
        forwarded.extend(quote! {
            #cfg
            #[doc = #doc]
            #[track_caller]
            pub fn #name #generics(&self, #(#declared),*) #output #bounds {
                self.get().#name(#(#names),*)
            }
        });
    }
    Ok(quote! {
        #(#head)* { #(#shells)* }

        impl crate::Var {
            #forwarded
        }
    })
}
