//! The attribute `#[on_cells]`.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Error, Generics, Ident, Result, ReturnType, Token, Type, Visibility, parenthesized};

/// A method.
struct Method {
    /// All attributes but `#[autocast]`.
    attributes: Vec<Group>,
    /// The arguments of `#[autocast]`: the options that hold operands.
    autocast: Option<TokenStream>,
    visibility: Visibility,
    name: Ident,
    generics: Generics,
    /// All arguments as they are written in the source.
    written: TokenStream,
    /// The arguments after `&self`; `None` if there is no `&self`.
    arguments: Option<Vec<Argument>>,
    output: ReturnType,
    body: Group,
}

/// An argument of a method.
struct Argument {
    name: Ident,
    ty: Type,
    passed: Passed,
}

/// The form in which the body of a method takes an argument.
enum Passed {
    /// `impl AsTensor` as `&Tensor`.
    Operand,
    /// `impl MaybeTensor` as `Option<&Tensor>`.
    MaybeOperand,
    /// An `impl Into<T>`, a shape or an index as a value: its type, and the expression that converts.
    Converted(TokenStream, TokenStream),
    /// As it is written.
    Unchanged,
}

impl Passed {
    fn of(name: &Ident, ty: &Type) -> Passed {
        let mut tokens = quote!(#ty).into_iter().peekable();
        let mut next_is = |word: &str| tokens.next_if(|t| t.to_string() == word).is_some();
        if !next_is("impl") {
            return Passed::Unchanged;
        }
        if next_is("AsTensor") {
            return Passed::Operand;
        }
        if next_is("MaybeTensor") {
            return Passed::MaybeOperand;
        }
        if next_is("IntoShape") {
            return Passed::Converted(quote!(Vec<kiln_base::Dim>), quote!(#name.into_shape()));
        }
        if next_is("Indices") {
            return Passed::Converted(quote!(Vec<crate::Index>), quote!(#name.into_indices()));
        }
        if !(next_is("Into") && next_is("<")) {
            return Passed::Unchanged;
        }
        let mut inner: Vec<TokenTree> = tokens.collect();
        inner.pop(); // the closing bracket
        match &inner[..] {
            [TokenTree::Ident(int)] if int == "Int" => {
                Passed::Converted(quote!(i64), quote!(Into::<crate::Int>::into(#name).0))
            }
            _ => Passed::Converted(inner.into_iter().collect(), quote!(#name.into())),
        }
    }
}

impl Parse for Method {
    fn parse(input: ParseStream<'_>) -> Result<Method> {
        let (mut attributes, mut autocast) = (Vec::new(), None);
        while input.parse::<Option<Token![#]>>()?.is_some() {
            let attribute: Group = input.parse()?;
            let mut tokens = attribute.stream().into_iter();
            match tokens.next() {
                Some(TokenTree::Ident(name)) if name == "autocast" => {
                    autocast = Some(tokens.collect());
                }
                _ => attributes.push(attribute),
            }
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
                let name = content.parse()?;
                content.parse::<Token![:]>()?;
                let ty = content.parse()?;
                let passed = Passed::of(&name, &ty);
                arguments.push(Argument { name, ty, passed });
            }
        }
        content.parse::<TokenStream>()?;
        let output = input.parse()?;
        generics.where_clause = input.parse()?;
        Ok(Method {
            attributes,
            autocast,
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
    /// Returns the method. If it converts arguments, it becomes a shell around a private method that takes the
    /// converted ones, so that crates that call it do not compile its body again.
    fn shell(&self) -> Result<TokenStream> {
        let Method {
            attributes,
            visibility,
            name,
            generics,
            written,
            output,
            ..
        } = self;
        let bounds = &generics.where_clause;
        let head = quote!(#(# #attributes)* #[track_caller] #visibility fn #name #generics);
        let (mut is_shell, mut read, mut given, mut taken) = (false, quote!(), quote!(), quote!());
        for Argument { name, ty, passed } in self.arguments.iter().flatten() {
            is_shell |= !matches!(passed, Passed::Unchanged);
            match passed {
                Passed::Operand => {
                    read.extend(quote!(let #name = #name.as_tensor();));
                    given.extend(quote!(&#name,));
                    taken.extend(quote!(#name: &crate::Tensor,));
                }
                Passed::MaybeOperand => {
                    read.extend(quote!(let #name = #name.into_option();));
                    given.extend(quote!(#name.as_ref(),));
                    taken.extend(quote!(#name: Option<&crate::Tensor>,));
                }
                Passed::Converted(ty, value) => {
                    given.extend(quote!(#value,));
                    taken.extend(quote!(#name: #ty,));
                }
                Passed::Unchanged => {
                    given.extend(quote!(#name,));
                    taken.extend(quote!(#name: #ty,));
                }
            }
        }
        if !is_shell {
            let (casts, body) = (self.casts(name)?, self.body.stream());
            return Ok(quote!(#head(#written) #output #bounds { #casts #body }));
        }
        let once = format_ident!("once_{name}");
        let (casts, body, declared) = (self.casts(&once)?, self.body.stream(), self.declared());
        Ok(quote! {
            #head(&self, #declared) #output #bounds {
                #read
                self.#once(#given)
            }
            #[track_caller]
            fn #once #generics(&self, #taken) #output #bounds { #casts #body }
        })
    }

    /// Returns the arguments after `&self`, with their types.
    fn declared(&self) -> TokenStream {
        let arguments = self.arguments.iter().flatten();
        let declared = arguments.map(|Argument { name, ty, .. }| quote!(#name: #ty));
        quote!(#(#declared),*)
    }

    /// Returns the statements that cast the operands inside `autocast`, and call the method `call` with them.
    fn casts(&self, call: &Ident) -> Result<TokenStream> {
        let Some(options) = &self.autocast else {
            return Ok(TokenStream::new());
        };
        let Some(arguments) = &self.arguments else {
            return Err(Error::new_spanned(
                &self.name,
                "expected a method of `&self`",
            ));
        };
        let options = options.to_string();
        let full = self.name.to_string();
        let name = full.split("_with").next().unwrap_or(&full);
        let name = name.strip_suffix("_dims").unwrap_or(name);
        // `_with_logits` is part of a name.
        let name = match full.contains("_with_logits") {
            true => format!("{name}_with_logits"),
            false => name.to_string(),
        };
        let (mut operands, mut cast, mut passed_on) = (quote!(), quote!(), quote!());
        for Argument { name, passed, .. } in arguments {
            let cast_name = format_ident!("cast_{name}");
            match passed {
                Passed::Operand => {
                    operands.extend(quote!(tensors.push(#name);));
                    cast.extend(quote!(let #cast_name = cast.apply(#name);));
                    passed_on.extend(quote!(&#cast_name,));
                }
                Passed::MaybeOperand => {
                    operands.extend(quote!(tensors.extend(#name);));
                    cast.extend(quote!(let #cast_name = cast.apply_to_option(#name);));
                    passed_on.extend(quote!(#cast_name.as_ref(),));
                }
                _ if options == format!("({name})") => {
                    operands.extend(
                        quote!(tensors.extend(crate::autocast::Castable::tensors(&#name));),
                    );
                    cast.extend(
                        quote!(let #cast_name = crate::autocast::Castable::cast(#name, &cast);),
                    );
                    passed_on.extend(quote!(#cast_name,));
                }
                _ => passed_on.extend(quote!(#name,)),
            }
        }
        Ok(quote! {
            if crate::autocast::is_autocast_enabled() {
                let mut tensors: Vec<&crate::Tensor> = vec![self];
                #operands
                if let Some(cast) = crate::autocast::begin(#name, &tensors) {
                    let cast_self = cast.apply(self);
                    #cast
                    let _inside = cast.enter();
                    return cast_self.#call(#passed_on);
                }
            }
        })
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
        _ => return Err(Error::new_spanned(&item, "expected `impl Tensor { .. }`")),
    };
    let Methods(methods) = syn::parse2(body.stream())?;
    let shells = methods.iter().map(Method::shell);
    let shells = shells.collect::<Result<Vec<_>>>()?;
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
        let (names, declared) = (arguments.iter().map(|a| &a.name), method.declared());
        let doc = format!("[`Tensor::{name}`] of what the cell holds.");
        let bounds = &generics.where_clause;
        forwarded.extend(quote! {
            #[doc = #doc]
            #[track_caller]
            pub fn #name #generics(&self, #declared) #output #bounds {
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
