-- Strict sliding window: the number of the newest sub-window, and the hits of each, oldest first: doubles that hold whole numbers. The
-- twin of sub_windows.rs.
local sub_windows = {}

-- Returns what is spent as of now, whether the stored value is current, and the counts of all sub-windows.
function sub_windows.load(key, now, deepest, width, buckets)
  local newest = math.floor(now / width)
  local counts = {newest = newest}
  local packed = redis.call('GET', key)
  local found = {newest}
  if packed then
    if #packed ~= 8 * (buckets + 2) then
      error({err = 'ERR value is not a sliding window of as many buckets'})
    end
    found = {struct.unpack(string.rep('<d', buckets + 2), packed)}
    -- The value after the counts is the offset of the end.
    found[buckets + 3] = nil
  end
  -- A sub-window in the future means that the clock went back: it is taken as the present one.
  local passed = math.max(newest - found[1], 0)
  local spent = 0
  for index = 1, buckets + 1 do
    counts[index] = found[1 + index + passed] or 0
    spent = spent + counts[index]
  end
  return spent, found[1] <= newest, counts
end

-- Returns what is spent after the call, and whether the state changed.
function sub_windows.charged(spent, cost, deepest, counts)
  local after = charged(spent, cost, deepest)
  local index, given_back = #counts, spent - after
  counts[index] = counts[index] - math.min(given_back, 0)
  while given_back > 0 do
    local taken = math.min(given_back, counts[index])
    counts[index] = counts[index] - taken
    given_back, index = given_back - taken, index - 1
  end
  -- equivalent: `~=` -> `<`, `>`: the sum is equal only if nothing changed or hits came and went
  return after, after ~= spent
end

function sub_windows.keep(key, spent, counts, now, width, buckets)
  -- equivalent: `==` -> `<=`: spent is never negative
  if spent == 0 then
    redis.call('DEL', key)
    return
  end
  local last = buckets + 1
  -- equivalent: `==` -> `<=`: a count is never negative
  while counts[last] == 0 do
    last = last - 1
  end
  -- 2 ms longer than the period: expiry has a resolution of 1 ms and uses a clock read earlier.
  local packed = struct.pack(string.rep('<d', buckets + 2), counts.newest, unpack(counts))
  redis.call('SET', key, packed, 'PX', milliseconds(math.ceil((last * width - now % width) / 1000) + 2))
end

-- The extra values of a verdict.
function sub_windows.extra_reply(reply, counts)
  for index = 1, #counts do
    reply[index + 1] = counts[index]
  end
end
