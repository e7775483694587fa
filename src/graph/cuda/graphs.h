#pragma once

#include "graph/device_graph.h"

namespace mezzo::cuda {

/// CUDA graphs, by LibTorch's at::cuda::CUDAGraph.
std::unique_ptr<DeviceGraphs> make_graphs(c10::Device device);

}  // namespace mezzo::cuda
