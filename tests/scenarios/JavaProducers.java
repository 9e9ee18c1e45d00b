import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own producers, as many as are asked for, driven by one JSON object a line on stdin; see java_producers.py.
 * What is told goes to stdout, one object a line. A command is done in the thread that it names, since send() may block.
 */
public class JavaProducers {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUT = System.out;
    private static final Map<Integer, KafkaProducer<byte[], byte[]>> PRODUCERS = new HashMap<>();
    private static final Map<String, ExecutorService> THREADS = new HashMap<>();

    private static final String TOKEN_URL = "sasl.oauthbearer.token.endpoint.url";
    private static final Map<Integer, Integer> ACCEPTED = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err); // stdout is ours alone
        tell(Map.of("number", 0)); // it runs
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode command = JSON.readTree(line);
            int id = command.get("producer").asInt();
            switch (command.get("do").asText()) {
                case "open" -> open(id, command);
                case "send" -> thread(command).execute(() -> send(id, command));
                case "metrics" -> tell(metrics(id, command));
                case "close" -> thread(command).execute(() -> close(id, command));
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.exit(0);
    }

    private static void open(int id, JsonNode command) {
        Map<String, Object> settings = new HashMap<>();
        command.get("settings").properties().forEach(each -> settings.put(each.getKey(), each.getValue().asText()));
        if (settings.containsKey(TOKEN_URL)) {
            // Kafka 4 asks nobody for tokens whom the JVM's start does not name. It looks each time, so it is not late.
            System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", (String) settings.get(TOKEN_URL));
        }
        ByteArraySerializer bytes = new ByteArraySerializer();
        answer(command, () -> PRODUCERS.put(id, new KafkaProducer<>(settings, bytes, bytes)));
    }

    private static void send(int id, JsonNode command) {
        try {
            JsonNode partition = command.get("partition");
            Integer place = partition.isNull() ? null : partition.asInt();
            byte[] key = command.get("key").binaryValue();
            JsonNode timestamp = command.get("timestamp");
            Long when = timestamp.isNull() ? null : timestamp.asLong();
            var record = new ProducerRecord<>(
                command.get("topic").asText(), place, when, key, command.get("value").binaryValue());
            for (JsonNode header : command.get("headers")) {
                record.headers().add(header.get(0).asText(), header.get(1).binaryValue());
            }
            PRODUCERS.get(id).send(record, (metadata, error) -> {
                Map<String, Object> told = about(command, error);
                if (error == null) {
                    told.put("partition", metadata.partition());
                    told.put("offset", metadata.offset());
                    told.put("timestamp", metadata.timestamp());
                }
                tell(told);
            });
            ACCEPTED.merge(id, 1, Integer::sum);
        } catch (Exception error) {
            tell(about(command, error));
        }
    }

    private static void close(int id, JsonNode command) {
        answer(command, () -> PRODUCERS.get(id).close(Duration.ofMillis(command.get("ms").asLong())));
    }

    private static ExecutorService thread(JsonNode command) {
        return THREADS.computeIfAbsent(command.get("thread").asText(), name -> Executors.newSingleThreadExecutor());
    }

    private static Map<String, Object> metrics(int id, JsonNode command) {
        Map<String, Object> found = about(command, null);
        found.put("accepted", ACCEPTED.getOrDefault(id, 0));
        PRODUCERS.get(id).metrics().forEach((name, metric) -> {
            if (name.group().equals("producer-metrics") && metric.metricValue() instanceof Number value) {
                found.put(name.name(), value.doubleValue());
            }
        });
        return found;
    }

    private static void answer(JsonNode command, Runnable action) {
        try {
            action.run();
            tell(about(command, null));
        } catch (Exception error) {
            tell(about(command, error));
        }
    }

    private static Map<String, Object> about(JsonNode command, Exception error) {
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("number", command.get("number").asInt());
        if (error != null) {
            Throwable reason = reason(error);
            told.put("error", reason.getClass().getSimpleName());
            told.put("code", Errors.forException(reason).code());
            told.put("text", String.valueOf(reason.getMessage()));
        }
        return told;
    }

    /**
     * What Kafka has a code for. A send() that comes while the producer stands in an error state raises a
     * KafkaException without one; the error that brought it there is the cause.
     */
    private static Throwable reason(Exception error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (Errors.forException(each) != Errors.UNKNOWN_SERVER_ERROR) {
                return each;
            }
        }
        return error;
    }

    private static void tell(Map<String, Object> what) {
        try {
            String line = JSON.writeValueAsString(what);
            synchronized (OUT) {
                OUT.println(line);
                OUT.flush();
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
