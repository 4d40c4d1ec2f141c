// SPDX-License-Identifier: Apache-2.0
// What the lab's programs share: flags, pinning, the time stamp counter, percentiles, shared memory.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#include <x86intrin.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lab {

[[noreturn]] inline void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

// `--name value` and `--name` (for a flag whose default is "off"), nothing else. `--help` prints `help` and
// the flags.
class Flags {
 public:
  Flags(std::string_view help, std::map<std::string, std::string> defaults)
      : help_(help), values_(std::move(defaults)) {}

  void Parse(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      std::string_view name = argv[i];
      if (name == "--help") Help();
      auto found = name.starts_with("--") ? values_.find(std::string(name.substr(2))) : values_.end();
      if (found == values_.end()) Wrong(name, "is no flag here; see --help");
      if (found->second == "off") {
        found->second = "on";
      } else if (++i < argc) {
        found->second = argv[i];
      } else {
        Wrong(name, "needs a value");
      }
    }
  }

  const std::string& Word(const std::string& name) const { return values_.at(name); }
  bool On(const std::string& name) const { return values_.at(name) == "on"; }
  std::uint64_t Number(const std::string& name) const {
    const std::string& text = values_.at(name);
    std::uint64_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) Wrong("--" + name, "takes a whole number");
    return value;
  }

 private:
  [[noreturn]] void Help() const {
    std::printf("%.*s\nflags and their defaults (\"off\" takes no value):\n", static_cast<int>(help_.size()),
                help_.data());
    for (const auto& [name, value] : values_) std::printf("  --%-18s %s\n", name.c_str(), value.c_str());
    std::exit(0);
  }
  [[noreturn]] static void Wrong(std::string_view name, const char* why) {
    std::fprintf(stderr, "%.*s %s\n", static_cast<int>(name.size()), name.data(), why);
    std::exit(2);
  }

  std::string_view help_;
  std::map<std::string, std::string> values_;
};

inline void PinTo(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) Die("sched_setaffinity");
}

inline std::uint64_t NowNs() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

// Time stamp ticks a nanosecond, measured over 50 ms.
inline double TicksPerNs() {
  const std::uint64_t ns = NowNs();
  const std::uint64_t ticks = __rdtsc();
  while (NowNs() - ns < 50'000'000) {
  }
  return static_cast<double>(__rdtsc() - ticks) / static_cast<double>(NowNs() - ns);
}

inline std::uint64_t Ticks() {
  unsigned cpu;
  return __rdtscp(&cpu);
}

template <class T>
T Percentile(std::vector<T>& values, double share) {
  if (values.empty()) return T{};
  const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

inline std::uint64_t Mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A memfd of that size, its pages given at once: a hole would be filled in the middle of a measurement.
inline int SharedFile(const char* name, std::size_t size_bytes) {
  const int file = memfd_create(name, MFD_CLOEXEC);
  if (file < 0) Die("memfd_create");
  if (posix_fallocate(file, 0, static_cast<off_t>(size_bytes)) != 0) Die("posix_fallocate");
  return file;
}

inline std::byte* Map(int file, std::size_t size_bytes, int protection) {
  const int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE;
  void* at = mmap(nullptr, size_bytes, protection, flags, file, 0);
  if (at == MAP_FAILED) Die("mmap");
  return static_cast<std::byte*>(at);
}

}  // namespace lab
