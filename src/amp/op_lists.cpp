#include "mezzo/amp/op_lists.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string>
#include <tuple>

#include "amp/op_policy_table.h"
#include "amp/policy_thread.h"

namespace mezzo {
namespace {

// In the order of CastPolicy.
constexpr std::array<std::string_view, 7> kPolicyWords = {
    "lower_precision_fp", "fp32", "fp32_set_opt_dtype", "fp32_append_dtype", "promote", "banned", "untouched"};

/// The policies of aten's ops in PyTorch 2.13, aten/src/ATen/autocast_mode.{h,cpp}. The dispatcher
/// tells which of these ops a device type autocasts, but not by which policy.
constexpr auto kPolicies = std::to_array<std::pair<CastPolicy, std::string_view>>({
    {CastPolicy::kLowerPrecision,
     R"(addbmm addmm _addmm_activation addmv addr baddbmm bmm chain_matmul conv1d conv1d.padding conv2d conv2d.padding
conv3d conv3d.padding conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input _convolution
convolution _convolution.deprecated cudnn_convolution cudnn_convolution_transpose einsum gru_cell
linalg_multi_dot linalg_vecdot linear lstm_cell matmul mkldnn_rnn_layer mm _mps_convolution mv
_native_multi_head_attention prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention
_scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell)"},
    {CastPolicy::kFloat32,
     R"(acos adaptive_avg_pool3d adaptive_max_pool3d asin avg_pool3d batch_norm binary_cross_entropy_with_logits cdist
cholesky cholesky_inverse cholesky_solve cosh cosine_embedding_loss cosine_similarity cross_entropy_loss
ctc_loss.IntList ctc_loss.Tensor dist erfinv exp expm1 fake_quantize_per_tensor_affine fft_fft fft_fft2
fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2
fft_rfftn fractional_max_pool2d fractional_max_pool3d frobenius_norm.dim geqrf grid_sampler_2d
_grid_sampler_2d_cpu_fallback grid_sampler_3d group_norm hinge_embedding_loss huber_loss inverse kl_div
l1_loss layer_norm linalg_cholesky linalg_cholesky_ex linalg_cond linalg_cond.p_str linalg_eig linalg_eigh
linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq
linalg_matrix_rank linalg_matrix_rank.atol_rtol_float linalg_matrix_rank.atol_rtol_tensor
linalg_matrix_rank.tol_tensor linalg_qr linalg_solve linalg_svd linalg_svdvals linalg_tensorinv
linalg_tensorsolve log log10 log1p log2 logsumexp lu_solve _lu_with_info margin_ranking_loss max_pool3d
max_unpool2d max_unpool3d mse_loss multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward
nanquantile nanquantile.scalar native_layer_norm nll_loss nll_loss2d nuclear_norm nuclear_norm.dim orgqr ormqr
pdist pinverse poisson_nll_loss polar pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor qr quantile
quantile.scalar reciprocal reflection_pad1d reflection_pad2d renorm replication_pad1d replication_pad2d
replication_pad3d rms_norm rsqrt sinh smooth_l1_loss soft_margin_loss softplus stft stft.center svd tan trace
triangular_solve triplet_margin_loss upsample_bicubic2d _upsample_bicubic2d_aa upsample_bilinear2d
_upsample_bilinear2d_aa upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_trilinear3d
view_as_complex)"},
    {CastPolicy::kFloat32SetOptDtype,
     R"(cumprod cumsum linalg_matrix_norm linalg_matrix_norm.str_ord linalg_vector_norm log_softmax.int prod
prod.dim_int softmax.int sum sum.dim_IntList)"},
    {CastPolicy::kFloat32AppendDtype, "norm.Scalar norm.ScalarOpt_dim"},
    {CastPolicy::kPromote,
     R"(addcdiv addcmul atan2 bilinear cat cross dot grid_sampler index_copy index_put scatter_add stack tensordot
vdot)"},
    {CastPolicy::kBanned, "binary_cross_entropy"},
});

/// The ops to which autocast on the CPU gives another policy than on accelerators: float32.
constexpr std::array<std::string_view, 4> kFloat32OnCpu = {"aten::binary_cross_entropy", "aten::grid_sampler",
                                                           "aten::prod", "aten::prod.dim_int"};

}  // namespace

std::string_view to_string(CastPolicy policy) { return kPolicyWords.at(static_cast<size_t>(policy)); }

CastPolicy parse_cast_policy(std::string_view word) {
  const auto found = std::find(kPolicyWords.begin(), kPolicyWords.end(), word);
  TORCH_CHECK_VALUE(found != kPolicyWords.end(), "op policy '", word,
                    "' is not known: ", c10::Join(", ", kPolicyWords));
  return static_cast<CastPolicy>(found - kPolicyWords.begin());
}

const std::map<std::string, CastPolicy>& known_policies() {
  static const auto policies = [] {
    std::map<std::string, CastPolicy> all;
    for (const auto& [policy, names] : kPolicies) {
      std::istringstream words{std::string(names)};
      for (std::string name; words >> name;) {
        all.emplace("aten::" + name, policy);
      }
    }
    return all;
  }();
  return policies;
}

std::vector<OpPolicyEntry> autocast_ops(c10::DeviceType device_type) {
  TORCH_CHECK_VALUE(at::autocast::is_autocast_available(device_type), "autocast_ops: device type ",
                    c10::DeviceTypeName(device_type, /*lower_case=*/true), " has no autocast, so it has no op list.");
  std::vector<OpPolicyEntry> entries;
  for (auto [name, policy] : known_policies()) {
    const auto op = find_op(name);
    if (!op || !op->hasKernelForDispatchKey(autocast_key(device_type))) {
      continue;
    }
    const bool is_float32_on_cpu = std::find(kFloat32OnCpu.begin(), kFloat32OnCpu.end(), name) != kFloat32OnCpu.end();
    if ((device_type == c10::kCPU && is_float32_on_cpu) ||
        (device_type == c10::kMPS && policy == CastPolicy::kFloat32SetOptDtype)) {
      policy = CastPolicy::kFloat32;
    }
    entries.push_back({std::move(name), policy});
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return std::tie(a.policy, a.op) < std::tie(b.policy, b.op); });
  return entries;
}

}  // namespace mezzo
