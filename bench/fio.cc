// SPDX-License-Identifier: Apache-2.0
#include "fio.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/json.hpp>
#include <cerrno>

#include "base/fd.h"
#include "base/format.h"

extern char** environ;

namespace cistern {
namespace {

// What a program says on its standard output.
Result<std::string> OutputOf(const std::vector<std::string>& command) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Error(Code::kIoError, Text("pipe: ", ErrnoText(errno)));
  const Fd from(ends[0]);
  Fd to(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Error(Code::kMiss, Text(command[0], ": ", ErrnoText(error)));
  to = Fd();
  std::string output;
  std::array<char, 4096> piece;
  for (ssize_t n; (n = read(from.get(), piece.data(), piece.size())) != 0;) {
    if (n < 0 && errno != EINTR) break;
    if (n > 0) output.append(piece.data(), static_cast<std::size_t>(n));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return Error(Code::kIoError,
                 Text(command[0], " ended with ", WIFEXITED(status) ? WEXITSTATUS(status) : -1, ": ",
                      output.substr(0, 300)));
  }
  return output;
}

}  // namespace

Status FindFio() {
  if (OutputOf({"fio", "--version"})) return Status();
  return Status(Code::kMiss,
                "the flash rows are measured against fio, which is not here: apt-get install fio");
}

std::vector<std::string> FioCommand(const FioJob& job) {
  return {"fio",
          "--name=limit",
          "--output-format=json",
          "--direct=1",
          Text("--filename=", job.file),
          Text("--rw=rand", job.write ? "write" : "read"),
          Text("--bs=", job.block_bytes),
          Text("--iodepth=", job.depth),
          Text("--ioengine=", job.engine),
          Text("--size=", job.file_bytes),
          Text("--io_size=", job.bytes),
          "--norandommap",
          "--randrepeat=0",
          job.write ? "--overwrite=0" : "--readonly"};
}

Result<FioResult> RunFio(const FioJob& job) {
  auto output = OutputOf(FioCommand(job));
  if (!output) return Error(std::move(output.error()));
  boost::system::error_code error;
  const boost::json::value parsed = boost::json::parse(output->substr(output->find('{')), error);
  if (error) return Error(Code::kMismatch, Text("fio printed no JSON: ", output->substr(0, 200)));
  const auto& side = parsed.at("jobs").at(0).at(job.write ? "write" : "read").as_object();
  FioResult result;
  result.bytes_per_s = side.at("bw_bytes").to_number<double>();
  const auto& latency = side.at("clat_ns").as_object();
  if (const auto* percentiles = latency.if_contains("percentile")) {
    result.p50_us = percentiles->at("50.000000").to_number<double>() / 1e3;
    result.p99_us = percentiles->at("99.000000").to_number<double>() / 1e3;
  }
  return result;
}

}  // namespace cistern
