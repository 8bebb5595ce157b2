// Run a plan with libtorch, for TorchScript files.
#include <ATen/Parallel.h>
#include <torch/script.h>
#include <torch/version.h>

#include "plan.h"

int main(int, char** arguments) {
  torch::NoGradGuard guard;
  at::set_num_threads(1);
  auto load = [](const std::string& path) -> Run {
    auto module = torch::jit::load(path);
    return [module](std::vector<Input>& inputs) mutable {
      std::vector<torch::jit::IValue> values;
      for (auto& x : inputs) {
        auto type = x.type == "float32" ? torch::kFloat : x.type == "int64" ? torch::kLong : torch::kBool;
        values.push_back(torch::from_blob(x.bytes.data(), x.shape, type));
      }
      auto found = module.forward(values).toTensor().contiguous();
      return std::vector<float>(found.data_ptr<float>(), found.data_ptr<float>() + found.numel());
    };
  };
  return run_plan(arguments[1], TORCH_VERSION, load);
}
