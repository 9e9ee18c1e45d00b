import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends one record for each key on stdin (a line in hex, "-" for null) by Kafka's own producer as it comes. */
public class KeyedSender {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("linger.ms", "20");
        ByteArraySerializer plain = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, plain, plain);
                BufferedReader keys = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = keys.readLine(); line != null; line = keys.readLine()) {
                byte[] key = line.equals("-") ? null : HexFormat.of().parseHex(line);
                producer.send(new ProducerRecord<>(arguments[1], key, "java".getBytes()));
            }
        }
    }
}
