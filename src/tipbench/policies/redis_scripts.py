"""The updates of the Redis store: each one script, so that it happens as a whole or not at all.

Numbers are packed doubles and sums are made in the order of the Python code: both give the same bits.
"""

DECIDE = """
-- KEYS: epoch, policies, kept, order, shown, decisions, log
-- ARGV: epoch, id, kept value, kind, at_ms, most kept, policy, log line
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then return 'reset' end
if redis.call('HEXISTS', KEYS[3], ARGV[2]) == 1 then return 'repeated' end
redis.call('SADD', KEYS[2], ARGV[7])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
redis.call('RPUSH', KEYS[4], ARGV[2])
while redis.call('LLEN', KEYS[4]) > tonumber(ARGV[6]) do
    local oldest = redis.call('LPOP', KEYS[4])
    redis.call('HDEL', KEYS[3], oldest, oldest .. ':reward')
end
redis.call('HSET', KEYS[5], ARGV[4], ARGV[5])
redis.call('INCR', KEYS[6])
redis.call('RPUSH', KEYS[7], ARGV[8])
return 'done'
"""

REWARD = """
-- KEYS: epoch, kept, models, log
-- ARGV: epoch, decision, reward, ridge, log line
if tonumber(redis.call('GET', KEYS[1]) or '0') > tonumber(ARGV[1]) then return {'gone'} end
local kept = redis.call('HGET', KEYS[2], ARGV[2])
if not kept then return {'unknown'} end
local before = redis.call('HGET', KEYS[2], ARGV[2] .. ':reward')
if before then return {'rewarded', before} end
local reward = tonumber(ARGV[3])
local dimension = struct.unpack('<I4', kept)
local doubles = string.rep('d', dimension)
local x = {struct.unpack('<' .. doubles, string.sub(kept, 5))}
local kind = string.sub(kept, 5 + 8 * dimension)
local packed = redis.call('HGET', KEYS[3], kind)
local count, total, sums = 0, 0, {}
if packed then
    count, total = struct.unpack('<dd', packed)
    sums = {struct.unpack('<' .. string.rep('d', dimension * dimension + dimension), string.sub(packed, 17))}
else
    for i = 1, dimension * dimension + dimension do sums[i] = 0 end
    for i = 1, dimension do sums[(i - 1) * dimension + i] = tonumber(ARGV[4]) end
end
local parts = {struct.pack('<dd', count + 1, total + reward)}
for i = 1, dimension do
    for j = 1, dimension do
        parts[#parts + 1] = struct.pack('<d', sums[(i - 1) * dimension + j] + x[i] * x[j])
    end
end
for i = 1, dimension do
    parts[#parts + 1] = struct.pack('<d', sums[dimension * dimension + i] + reward * x[i])
end
redis.call('HSET', KEYS[3], kind, table.concat(parts))
redis.call('HSET', KEYS[2], ARGV[2] .. ':reward', ARGV[3])
redis.call('RPUSH', KEYS[4], ARGV[5])
return {'done'}
"""

RESET = """
-- KEYS: epoch, policies, log, then every key of every policy of the user
-- ARGV: the log line without its epoch, in two halves
local epoch = redis.call('INCR', KEYS[1])
for i = 4, #KEYS do redis.call('DEL', KEYS[i]) end
redis.call('DEL', KEYS[2])
redis.call('RPUSH', KEYS[3], ARGV[1] .. epoch .. ARGV[2])
return epoch
"""
