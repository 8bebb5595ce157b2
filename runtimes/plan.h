// The plan of a runner in C++: reads it, times each call, and reports as the runners in Python do.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Input {
  std::string name, type;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
};
using Run = std::function<std::vector<float>(std::vector<Input>&)>;

inline std::vector<std::string> split(const std::string& text, char mark) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, mark);) parts.push_back(part);
  return parts;
}

inline Input read_input(const std::string& field) {  // name:type:shape:file
  auto parts = split(field, ':');
  Input input{parts.at(0), parts.at(1), {}, {}};
  for (auto& size : split(parts.at(2), 'x')) input.shape.push_back(std::stoll(size));
  std::ifstream file(parts.at(3), std::ios::binary);
  input.bytes.assign(std::istreambuf_iterator<char>(file), {});
  return input;
}

inline int run_plan(const char* plan, const std::string& version, const std::function<Run(const std::string&)>& load) {
  std::printf("version\t%s\n", version.c_str());
  std::ifstream lines(plan);
  std::string line, loaded;
  Run run;
  for (int index = 0; std::getline(lines, line); ++index) {
    auto fields = split(line, '\t');
    std::vector<Input> inputs;
    for (size_t i = 2; i < fields.size(); ++i) inputs.push_back(read_input(fields[i]));
    try {
      if (loaded != fields[0]) run = load(fields[0]), loaded = fields[0];
      auto answer = run(inputs);
      std::ofstream(fields[1], std::ios::binary).write(reinterpret_cast<char*>(answer.data()), 4 * answer.size());
      double best = 1e9;
      for (int i = 0; i < 5; ++i) {
        auto started = std::chrono::steady_clock::now();
        run(inputs);
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
      }
      std::printf("ok\t%d\t%g\n", index, best);
    } catch (const std::exception& error) {
      std::string text = error.what();
      for (char& c : text) c = (c == '\n' || c == '\t') ? ' ' : c;
      std::printf("error\t%d\t%.500s\n", index, text.c_str());
    }
  }
  return 0;
}
