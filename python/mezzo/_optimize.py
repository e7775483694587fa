# mypy: disable-error-code="arg-type, assignment, attr-defined, no-untyped-call, no-untyped-def, var-annotated"
"""mezzo.optimize: encoders of transformers' models, computed on packed rows by torch.classes.mezzo.Encoder.

Python finds out whether a call can be computed there and hands over the parameters; all computing is in C++.
"""

import contextvars
import functools
import inspect
import json
import warnings
from typing import TypeVar

import torch
from torch import nn
from transformers import modeling_outputs
from transformers.activations import ACT2FN

from mezzo import _library
from mezzo._errors import checked

_Model = TypeVar("_Model", bound=nn.Module)

_BERT = {"self.dropout": "attention_probs_dropout_prob", "": "hidden_dropout_prob"}
# Of each base model: which field of the config the nn.Dropout modules stand for, by the end of their names.
_BASE_MODELS = {
    "BertModel": _BERT,
    "RobertaModel": _BERT,
    "XLMRobertaModel": _BERT,
    "CamembertModel": _BERT,
    "ElectraModel": _BERT,
    "DebertaV2Model": _BERT,
    "DistilBertModel": {"attention.dropout": "attention_dropout", "": "dropout"},
    "ModernBertModel": {"embeddings.drop": "embedding_dropout", "mlp.drop": "mlp_dropout", "attn.out_drop": "attention_dropout"},
}
_FAMILIES = "BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, DistilBERT, DeBERTa-v2 and ModernBERT"
_CLASSIFIERS = {name.replace("Model", "ForSequenceClassification") for name in _BASE_MODELS}
# Modules of classifiers that read the first token's state alone. DistilBERT's and ModernBERT's classifiers take that state themselves.
_READ_FIRST = {"BertPooler", "RobertaClassificationHead", "XLMRobertaClassificationHead", "CamembertClassificationHead",
               "ElectraClassificationHead", "ContextPooler"}
_LEAVES = (nn.Linear, nn.LayerNorm, nn.Embedding)
_WITHOUT_EFFECT = {"use_cache", "num_items_in_batch", "batch_size", "seq_len"}  # the last two of transformers 4
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Names of hooks that do nothing here: of transformers and PEFT, for hidden states and for checkpointing of frozen models.
_HARMLESS_HOOKS = {"output_capturing_hook", "make_inputs_require_grads", "make_inputs_require_grad"}

# The base model whose first tokens alone the head that is running reads.
_read_by_first_token = contextvars.ContextVar("mezzo_read_by_first_token", default=None)


class _OwnForward(Exception):
    """Why a call is left to the model's own code."""


def optimize(model: _Model) -> _Model:
    """Makes the encoders in a model compute on packed rows, without padding, with mezzo's operators.

    Parameters, ``state_dict()``, the signature of ``forward``, and the types and shapes of its outputs stay. Gradients
    arrive in the same ``.grad``, with the same dtype. ``Trainer``, Accelerate, DistributedDataParallel, PEFT's LoRA and
    sentence-transformers work as before. Call this before or after them, but before Accelerate prepares an encoder without a head.

    Differences from the model's own code:

    - ``last_hidden_state`` ``[B, S, H]`` is zero at padding. A classifier of texts computes the last layer for first
      tokens alone.
    - Dropout draws one number per call from torch's default generator. The masks follow from it, on every device.
    - Gradients can be differentiated once: ``create_graph=True`` does not work.
    - In eval mode without gradients, a CPU keeps a rearranged copy of the layers' weights, in the dtype of autocast.

    A call that mezzo cannot compute runs the model's own code, and a warning names each reason once. Some reasons are
    ``output_attentions``, ``output_hidden_states``, ``inputs_embeds``, ``position_ids``, left padding, masks that are not
    ``[B, S]``, hooks inside the encoder, or a LoRA of another kind. ``torch.compile`` and exports trace the model's own code.

    Args:
        model: a model of transformers, or a module that holds one. It is changed in place. Supported are BERT, RoBERTa,
            XLM-RoBERTa, CamemBERT, ELECTRA, DistilBERT, DeBERTa-v2 and ModernBERT, with any head except question
            answering. A second call changes nothing. To undo it, give the base model its class again:
            ``base = model.base_model; base.__class__ = type(base).__base__``.

    Returns:
        ``model``.

    Raises:
        ValueError: for a model without a supported encoder, for an encoder whose ``forward`` was replaced, and for question
            answering, which reads states of padding.

    Example::

        model = mezzo.optimize(AutoModelForSequenceClassification.from_pretrained(name))
        Trainer(model, ...).train()
    """
    _library.load()
    checked(model, nn.Module, "model")
    found = False
    modules = list(model.modules())
    for module in modules:
        if _class_of(getattr(module, "base_model", module), _BASE_MODELS) and type(module).__name__.endswith("ForQuestionAnswering"):
            raise ValueError(f"mezzo.optimize: {type(module).__name__} chooses among all positions, padding included, "
                             "and mezzo computes no padding. Models with other heads work.")
        if "forward" in module.__dict__ and _class_of(module, _BASE_MODELS) and not hasattr(type(module), "_mezzo_own"):
            raise ValueError(f"mezzo.optimize: the forward of this {type(module).__name__} was replaced, for example by Accelerate. "
                             "Call mezzo.optimize before.")
    for module in modules:
        is_base = _class_of(module, _BASE_MODELS) is not None
        found = found or is_base
        if hasattr(type(module), "_mezzo_own"):
            continue
        if is_base:
            module._mezzo = _Packed()
            module.__class__ = _optimized(type(module), _run_base)
        elif _class_of(module, _CLASSIFIERS):
            module.__class__ = _optimized(type(module), _run_classifier)
    if not found:
        raise ValueError(f"mezzo.optimize: {type(model).__name__} holds no encoder that mezzo computes. "
                         f"It computes {_FAMILIES} of transformers.")
    return model


def _class_of(module, names):
    """The class of transformers among a module's, if its name is in `names` and its forward is used."""
    for cls in type(module).__mro__:
        if cls.__name__ in names and cls.__module__.startswith("transformers.models."):
            return cls if type(module).forward is cls.forward else None
    return None


@functools.cache
def _optimized(cls, run):
    """A subclass of the same name whose forward is `run`. Its objects are pickled and copied as of `cls`, and optimized again."""
    own = cls.forward
    arguments = tuple(inspect.signature(own).parameters)[1:]

    @functools.wraps(own)
    def forward(self, *args, **kwargs):
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return own(self, *args, **kwargs)
        return run(self, own, arguments, args, kwargs)

    def reduce(self, protocol):
        return _restore, (cls, run), self.__dict__

    return type(cls)(cls.__name__, (cls,), {
        "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__,
        "forward": forward, "__reduce_ex__": reduce, "_mezzo_own": own})


def _restore(cls, run):
    _library.load()
    made = _optimized(cls, run)
    return made.__new__(made)


def _run_classifier(model, own, arguments, args, kwargs):
    token = _read_by_first_token.set(model.base_model if _reads_first(model) else None)
    try:
        return own(model, *args, **kwargs)
    finally:
        _read_by_first_token.reset(token)


def _reads_first(model):
    """Whether a classifier reads no state except each text's first. A head or a pooler of the user's may read others."""
    if model.config.model_type in ("distilbert", "modernbert"):
        return getattr(model.config, "classifier_pooling", "cls") == "cls"
    places = (model.base_model, "pooler"), (model, "pooler"), (model, "classifier")
    reader = next((found for owner, name in places if (found := getattr(owner, name, None)) is not None), None)
    kind = type(getattr(reader, "original_module", reader))  # of PEFT's wrapper
    return kind.__name__ in _READ_FIRST and kind.__module__.startswith("transformers.models.")


def _run_base(model, own, arguments, args, kwargs):
    packed = model._mezzo
    try:
        return packed.forward(model, {**dict(zip(arguments, args)), **kwargs})
    except _OwnForward as reason:
        packed.warn(f"{type(model).__name__} runs its own forward: {reason}")
        return own(model, *args, **kwargs)


class _Packed:
    """A base model's state for mezzo: the encoder in C++, made when it is first needed."""

    def __init__(self):
        self.mirror = None
        self.warned = set()

    def __reduce__(self):
        return _Packed, ()

    def warn(self, message):
        if message not in self.warned:
            self.warned.add(message)
            warnings.warn(f"mezzo.optimize: {message}", stacklevel=6)

    def forward(self, model, given):
        config = model.config
        ids, mask, types = (given.pop(name, None) for name in ("input_ids", "attention_mask", "token_type_ids"))
        returns_dict = given.pop("return_dict", None)
        for name in ("output_attentions", "output_hidden_states"):
            if given.get(name) is None and getattr(config, name, False):
                raise _OwnForward(f"config.{name} is set")
        for name, value in given.items():
            if value is not None and value is not False and name not in _WITHOUT_EFFECT:
                raise _OwnForward(f"{name} is given")
        if (type(ids) is not torch.Tensor or ids.dim() != 2 or ids.numel() == 0 or ids.is_floating_point()
                or torch._C._functorch.peek_interpreter_stack() is not None):
            raise _OwnForward("input_ids is not a plain tensor of integers [B, S]")

        if self.mirror is None or not self.mirror.is_current(model):
            self.mirror = _Mirror(model)
        mirror = self.mirror
        training = model.training
        checkpointing = mirror.check_modules(training)
        encoder = mirror.encoder
        if ids.device != mirror.device:
            raise _OwnForward(f"input_ids is on {ids.device} and parameters are on {mirror.device}")
        if ids.shape[1] > mirror.max_tokens:
            raise _OwnForward(f"texts have {ids.shape[1]} tokens, more than the {mirror.max_tokens} of the config")
        if mask is not None and (type(mask) is not torch.Tensor or mask.shape != ids.shape):
            raise _OwnForward("attention_mask is not a tensor [B, S]")
        lengths, problem = encoder.lengths(ids, mask)
        if problem:
            raise _OwnForward(problem)

        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_()) if training and mirror.drops else 0
        only_first = _read_by_first_token.get() is model and not model._forward_hooks
        rows = encoder.forward(ids, types if mirror.reads_token_types else None, lengths, only_first, training, checkpointing, seed)
        if hasattr(model, "pooler"):
            outputs = modeling_outputs.BaseModelOutputWithPoolingAndCrossAttentions(
                last_hidden_state=rows, pooler_output=None if model.pooler is None else model.pooler(rows))
        elif config.model_type == "electra":
            outputs = modeling_outputs.BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=rows)
        else:
            outputs = modeling_outputs.BaseModelOutput(last_hidden_state=rows)
        if returns_dict is None:
            returns_dict = getattr(config, "return_dict", True)
        return outputs if returns_dict is not False else outputs.to_tuple()


class _Mirror:
    """An encoder in C++ on the parameters of a base model, and the parts of the model that it stands for."""

    def __init__(self, model):
        self.links = []        # (dict, key, value): modules and parameters, which must still be there
        self.values = []       # (function of a module, module, value): settings, which must still be the same
        self.modules = []      # dicts of all modules that are computed here
        self.switched = []     # dicts of those whose mode matters
        self.parameters = {}   # by the names of the encoder in C++
        self.dropouts = {}     # by name
        self.loras = {}        # rank, scale and dropout, by the name of the linear layer
        config = model.config
        self.eps = getattr(config, "layer_norm_eps", getattr(config, "norm_eps", 1e-12))  # DistilBERT has the last
        activation = next(getattr(config, name) for name in ("hidden_act", "hidden_activation", "activation") if hasattr(config, name))
        self.activation = type(ACT2FN[activation]) if isinstance(activation, str) else None
        for name, module in model._modules.items():
            self.links.append((model._modules, name, module))
            if name != "pooler":
                self._add(name, module)
        if model._parameters:
            raise _OwnForward("the base model has other parameters")

        fields = json.loads(config.to_json_string())
        for name in ("architectures", "id2label", "label2id", "num_labels", "problem_type"):
            fields.pop(name, None)
        fields |= self._probabilities(next(_BASE_MODELS[cls.__name__] for cls in type(model).__mro__ if cls.__name__ in _BASE_MODELS))
        self.tensors = list(self.parameters.values())
        self.device, self.dtype = self.tensors[0].device, self.tensors[0].dtype
        for name, tensor in self.parameters.items():
            if type(tensor) not in (nn.Parameter, torch.Tensor) or tensor.is_inference() or tensor.is_meta:
                raise _OwnForward(f"{name} is not a plain tensor")
        if not self._is_uniform():
            raise _OwnForward("parameters are of several dtypes or devices")
        self.drops = any(p > 0 for p in self.dropouts.values()) or any(p > 0 for _, _, p in self.loras.values())
        try:
            self.encoder = torch.classes.mezzo.Encoder(json.dumps(fields))
            for name, (rank, scale, p) in self.loras.items():
                self.encoder.add_lora(name, rank, scale, p)
            expected = set(self.encoder.parameter_names())
            if odd := sorted(expected ^ self.parameters.keys()):
                raise _OwnForward(f"{odd[0]} is {'missing' if odd[0] in expected else 'not expected'}")
            self.encoder.adopt(list(self.parameters), self.tensors)
        except ValueError as error:
            raise _OwnForward(str(error)) from None
        self.max_tokens = self.encoder.max_tokens()
        self.reads_token_types = self.encoder.reads_token_types()

    def _add(self, name, module):
        kind = type(module)
        self.modules.append(module.__dict__)
        for owner in (module._modules, module._parameters):
            self.links.extend((owner, key, value) for key, value in owner.items())
        if kind in _LEAVES:
            if kind is nn.Embedding and (module.max_norm is not None or module.sparse or module.scale_grad_by_freq):
                raise _OwnForward(f"{name} has max_norm, sparse or scale_grad_by_freq")
            if kind is nn.LayerNorm:
                self.values.append((_eps, module, self.eps))
                if module.eps != self.eps:
                    raise _OwnForward(f"{name} has the eps {module.eps}, and the config {self.eps}")
            self.parameters |= {f"{name}.{key}": value for key, value in module._parameters.items() if value is not None}
        elif kind is nn.Dropout or kind is nn.Identity and name.endswith(("drop", "dropout")):
            self.dropouts[name] = _probability(module)
            self.values.append((_probability, module, self.dropouts[name]))
            self.switched.append(module.__dict__)
        elif kind.__module__ == "peft.tuners.lora.layer" and kind.__name__ == "Linear":
            self._add_lora(name, module)
        elif module._parameters or not (kind.__module__.startswith("transformers.models.") or kind in (nn.ModuleList, self.activation)
                                        or kind is nn.Identity and name.endswith("attn_norm")):
            raise _OwnForward(f"{name} is a {kind.__module__}.{kind.__qualname__}")
        else:
            self.switched.append(module.__dict__)
            for key, child in module._modules.items():
                if child is not None:
                    self._add(f"{name}.{key}", child)

    def _add_lora(self, name, module):
        """PEFT's LoRA of a linear layer, with at most one adapter in use."""
        self.values.append((_lora_state, module, _lora_state(module)))
        disabled, merged, adapters, _ = _lora_state(module)
        if disabled and merged:
            raise _OwnForward(f"{name} has merged adapters, which are disabled")
        self._add(name, module.base_layer)
        if disabled or merged:
            return
        adapters = [adapter for adapter in adapters if adapter in module.lora_A]
        if not adapters:
            return
        adapter = adapters[0]
        parts = [module.lora_A[adapter], module.lora_B[adapter], module.lora_dropout[adapter]]
        if (len(adapters) > 1 or getattr(module, "lora_variant", {}).get(adapter) is not None or module.fan_in_fan_out
                or any(getattr(module, "use_dora", {}).values()) or type(parts[0]) is not nn.Linear or type(parts[1]) is not nn.Linear
                or type(parts[2]) not in (nn.Dropout, nn.Identity) or parts[0].bias is not None or parts[1].bias is not None):
            raise _OwnForward(f"{name} has several adapters, or one that is not plain LoRA")
        p = 0.0
        if type(parts[2]) is nn.Dropout:
            p = parts[2].p
            self.values.append((_probability, parts[2], p))
            if p > 0:
                self.switched.append(parts[2].__dict__)
        self.loras[name] = (parts[0].weight.shape[0], float(module.scaling[adapter]), p)
        for key, part in zip("AB", parts):
            self.parameters[f"{name}.lora_{key}"] = part.weight
        for owner in (module.lora_A, module.lora_B, module.lora_dropout):
            self.links.append((owner._modules, adapter, owner[adapter]))
        self.links.extend((part._parameters, "weight", part.weight) for part in parts[:2])
        self.modules.extend(part.__dict__ for part in parts)

    def _probabilities(self, fields):
        """Of dropout, by the fields of the config."""
        found = {}
        for name, p in self.dropouts.items():
            field = next(field for ending, field in fields.items() if name.endswith(ending))
            if found.setdefault(field, p) != p:
                raise _OwnForward(f"modules with {field} have different probabilities")
        return found

    def _is_uniform(self):
        return all(tensor.dtype is self.dtype and tensor.device == self.device for tensor in self.tensors)

    def is_current(self, model):
        return (self.links[0][0] is model._modules
                and all(owner.get(key) is value for owner, key, value in self.links)
                and all(function(module) == value for function, module, value in self.values)
                and self._is_uniform())

    def check_modules(self, training):
        """Whether layers are checkpointed."""
        checkpointing = False
        for module in self.modules:
            for hooks in _HOOKS:
                if module[hooks] and any(getattr(hook, "__name__", "") not in _HARMLESS_HOOKS for hook in module[hooks].values()):
                    raise _OwnForward("a module inside the encoder has a hook")
            if "forward" in module:
                raise _OwnForward("a module inside the encoder has another forward")
            checkpointing = checkpointing or module.get("gradient_checkpointing", False)
        for module in self.switched:
            if module["training"] is not training:
                raise _OwnForward("some modules are in train mode and others in eval mode")
        if checkpointing and any(tensor._backward_hooks for tensor in self.tensors):
            raise _OwnForward("a parameter has a hook, and layers are checkpointed")
        return checkpointing


def _probability(dropout):
    return getattr(dropout, "p", 0.0)  # 0 for an nn.Identity


def _eps(layer_norm):
    return layer_norm.eps


def _lora_state(module):
    return module.disable_adapters, module.merged, tuple(module.active_adapters), tuple(module.scaling.values())
