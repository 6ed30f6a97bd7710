#include "doctor/trace.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace millrace {

std::string trace_json(const Timeline& timeline, const std::string& process,
                       const std::string& device) {
  using Json = nlohmann::ordered_json;
  const int pid = getpid();
  int64_t base = 0;
  for (const Span& s : timeline.spans()) base = base == 0 ? s.begin : std::min(base, s.begin);
  Json events = Json::array();
  auto tell = [&](const char* what, int64_t tid, Json args) {
    events.push_back({{"ph", "M"},
                      {"name", what},
                      {"pid", pid},
                      {"tid", tid},
                      {"ts", 0},
                      {"args", std::move(args)}});
  };
  tell("process_name", 0, {{"name", process}});
  for (size_t lane = 0; lane < timeline.lanes().size(); ++lane) {
    tell("thread_name", static_cast<int64_t>(lane) + 1, {{"name", timeline.lanes()[lane]}});
    tell("thread_sort_index", static_cast<int64_t>(lane) + 1, {{"sort_index", lane}});
  }
  for (const Span& s : timeline.spans()) {
    Json event = {{"ph", "X"},
                  {"cat", s.group},
                  {"name", s.name},
                  {"pid", pid},
                  {"tid", s.lane + 1},
                  {"ts", static_cast<double>(s.begin - base) * 1e-3},
                  {"dur", static_cast<double>(s.end - s.begin) * 1e-3}};
    if (!s.place.empty()) event["args"] = {{"scope", s.place}};
    events.push_back(std::move(event));
  }
  const Json trace = {{"schemaVersion", 1},
                      {"deviceProperties", Json::array({Json{{"id", 0}, {"name", device}}})},
                      {"displayTimeUnit", "ms"},
                      {"baseTimeNanoseconds", base},
                      {"traceEvents", std::move(events)}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string gzip(const std::string& bytes) {
  z_stream stream{};
  constexpr int kGzip = 16 + MAX_WBITS;
  MR_CHECK(deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) ==
               Z_OK,
           "zlib");
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  MR_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END, "deflate");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace millrace
