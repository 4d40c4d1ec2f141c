// SPDX-License-Identifier: Apache-2.0
#include "fio.h"

#include <boost/json.hpp>

#include "base/format.h"
#include "command.h"

namespace cistern {

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
          Text("--rw=", job.random ? "rand" : "", job.write ? "write" : "read"),
          Text("--bs=", job.block_bytes),
          Text("--iodepth=", job.depth),
          Text("--ioengine=", job.engine),
          Text("--size=", job.file_bytes),
          Text("--io_size=", job.bytes),
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
