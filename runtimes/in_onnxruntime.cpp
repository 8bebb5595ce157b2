// Run a plan with ONNX Runtime's C++ interface.
#include <onnxruntime_cxx_api.h>

#include <memory>

#include "plan.h"

int main(int, char** arguments) {
  Ort::Env environment(ORT_LOGGING_LEVEL_FATAL);
  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  auto load = [&](const std::string& path) -> Run {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    auto session = std::make_shared<Ort::Session>(environment, path.c_str(), options);
    return [session, &memory](std::vector<Input>& inputs) {
      std::vector<const char*> names;
      std::vector<Ort::Value> values;
      for (auto& x : inputs) {
        auto type = x.type == "float32" ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
                    : x.type == "int64" ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64
                                        : ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;
        names.push_back(x.name.c_str());
        values.push_back(Ort::Value::CreateTensor(memory, x.bytes.data(), x.bytes.size(), x.shape.data(), x.shape.size(), type));
      }
      Ort::AllocatorWithDefaultOptions allocator;
      auto output = session->GetOutputNameAllocated(0, allocator);
      const char* wanted = output.get();
      auto found = session->Run(Ort::RunOptions{}, names.data(), values.data(), values.size(), &wanted, 1);
      auto* data = found[0].GetTensorData<float>();
      return std::vector<float>(data, data + found[0].GetTensorTypeAndShapeInfo().GetElementCount());
    };
  };
  return run_plan(arguments[1], Ort::GetVersionString(), load);
}
