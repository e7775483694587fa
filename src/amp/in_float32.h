#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <c10/core/ScalarType.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <optional>
#include <tuple>
#include <type_traits>

/// Turns an op of LibTorch into one that computes its slow half dtypes in float32 and rounds
/// once: for CpuHalfCompute.
namespace mezzo::in_float32 {

using at::Tensor;

#if defined(__x86_64__)
/// By the processor's own word: not every compiler knows to ask for it by name.
inline bool has_avx512_fp16() {
  constexpr unsigned kFeatures = 7, kFp16 = 23;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx512f") && __get_cpuid_count(kFeatures, 0, &a, &b, &c, &d) != 0 &&
         (d >> kFp16 & 1) != 0;
}
#endif

/// Whether this processor has no instructions for products of `dtype`.
inline bool is_slow(at::ScalarType dtype) {
#if defined(__x86_64__)
  static const bool fp16_is_slow = !has_avx512_fp16();
  static const bool bf16_is_slow = !__builtin_cpu_supports("avx512bf16");
  return (dtype == at::kHalf && fp16_is_slow) || (dtype == at::kBFloat16 && bf16_is_slow);
#else
  (void)dtype;
  return false;
#endif
}

/// The one dtype of the floating tensors among the arguments; nothing if they differ.
template <class... Args>
std::optional<at::ScalarType> floating_dtype(const Args&... args) {
  std::optional<at::ScalarType> dtype;
  bool same = true;
  const auto look_at = [&](const Tensor& tensor) {
    if (tensor.defined() && tensor.is_floating_point()) {
      dtype = dtype.value_or(tensor.scalar_type());
      same &= tensor.scalar_type() == *dtype;
    }
  };
  const auto look = [&]<class Arg>(const Arg& arg) {
    if constexpr (std::is_same_v<Arg, Tensor>) {
      look_at(arg);
    } else if constexpr (std::is_same_v<Arg, std::optional<Tensor>>) {
      look_at(arg.value_or(Tensor()));
    }
  };
  (look(args), ...);
  return same ? dtype : std::nullopt;
}

/// The one slow dtype of the arguments that are tensors; nothing if they differ, which is the
/// built-in kernel's error to report.
template <class... Args>
std::optional<at::ScalarType> slow_dtype(const Args&... args) {
  std::optional<at::ScalarType> dtype;
  bool same = true;
  const auto look = [&]<class Arg>(const Arg& arg) {
    if constexpr (std::is_same_v<Arg, Tensor>) {
      dtype = dtype.value_or(arg.scalar_type());
      same &= arg.scalar_type() == *dtype;
    } else if constexpr (std::is_same_v<Arg, std::optional<Tensor>>) {
      same &= !arg.has_value() || !arg->defined() || arg->scalar_type() == dtype;
    }
  };
  (look(args), ...);
  return same && is_slow(*dtype) ? dtype : std::nullopt;
}

/// In float32. Expanded tensors stay expanded, and are converted once.
inline Tensor widened(const Tensor& x) {
  auto stored = x;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (x.stride(dim) == 0 && x.size(dim) > 1) {
      stored = stored.narrow(dim, 0, 1);
    }
  }
  return stored.to(at::kFloat).expand(x.sizes());
}

inline std::optional<Tensor> widened(const std::optional<Tensor>& x) {
  return x && x->defined() ? std::optional(widened(*x)) : x;
}

template <class Arg>
const Arg& widened(const Arg& not_a_tensor) {
  return not_a_tensor;
}

inline Tensor rounded(const Tensor& x, at::ScalarType dtype) { return x.defined() ? x.to(dtype) : x; }

inline std::tuple<Tensor, Tensor, Tensor> rounded(const std::tuple<Tensor, Tensor, Tensor>& x, at::ScalarType dtype) {
  const auto& [first, second, third] = x;
  return {rounded(first, dtype), rounded(second, dtype), rounded(third, dtype)};
}

/// `kOp`, computed in float32 where its tensors are of a slow dtype.
template <auto kOp>
struct InFloat32;
template <class Result, class... Args, Result (*kOp)(Args...)>
struct InFloat32<kOp> {
  static Result call(Args... args) {
    const auto dtype = slow_dtype(args...);
    if (!dtype) {
      return kOp(args...);
    }
    const auto result = kOp(widened(args)...);  // the copies end here, before there is one more
    return rounded(result, *dtype);
  }
};

/// oneDNN's RNN layer or its backward. In float16 it is computed in float32 on every processor,
/// because oneDNN cannot train in float16. A tensor that is not floating is oneDNN's workspace,
/// which passes as it is.
template <auto kOp>
struct RnnInFloat32;
template <class... Results, class... Args, std::tuple<Results...> (*kOp)(Args...)>
struct RnnInFloat32<kOp> {
  static std::tuple<Results...> call(Args... args) {
    const auto dtype = floating_dtype(args...);
    if (!dtype || !(*dtype == at::kHalf || is_slow(*dtype))) {
      return kOp(args...);
    }
    const auto results = kOp(wide(args)...);
    return std::apply([&](const Results&... each) { return std::tuple<Results...>(narrow(each, *dtype)...); }, results);
  }

 private:
  template <class Arg>
  static decltype(auto) wide(const Arg& arg) {
    if constexpr (std::is_same_v<Arg, Tensor>) {
      return arg.defined() && arg.is_floating_point() ? widened(arg) : arg;
    } else {
      return widened(arg);
    }
  }
  static Tensor narrow(const Tensor& x, at::ScalarType dtype) {
    return x.defined() && x.is_floating_point() ? x.to(dtype) : x;
  }
};

/// Its `out=` form; `kBuiltIn` is the one to fall back to.
template <auto kOp, auto kBuiltIn>
struct OutInFloat32;
template <class... Args, Tensor (*kOp)(Args...), auto kBuiltIn>
struct OutInFloat32<kOp, kBuiltIn> {
  static Tensor& call(Args... args, Tensor& out) {
    if (!slow_dtype(args..., out)) {
      return kBuiltIn(args..., out);
    }
    const auto result = kOp(widened(args)...);
    at::native::resize_output(out, result.sizes());
    return out.copy_(result);
  }
};

/// Its in-place form.
template <auto kOp, auto kBuiltIn>
struct InPlaceInFloat32;
template <class... Args, Tensor (*kOp)(const Tensor&, Args...), Tensor& (*kBuiltIn)(Tensor&, Args...)>
struct InPlaceInFloat32<kOp, kBuiltIn> {
  static Tensor& call(Tensor& self, Args... args) {
    if (!slow_dtype(self, args...)) {
      return kBuiltIn(self, args...);
    }
    const auto result = kOp(widened(self), widened(args)...);
    // One that would have to grow is an error of the built-in kernel's.
    return result.sizes() == self.sizes() ? self.copy_(result) : kBuiltIn(self, args...);
  }
};

}  // namespace mezzo::in_float32
